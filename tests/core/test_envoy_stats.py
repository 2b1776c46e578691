"""What the names on an Envoy's page mean: how a request counts for the release that the split drew."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from serving.ports import ArmCounters
from serving.traffic.adapters.envoy_stats import Counted, parse
from serving.traffic.core.buckets import EDGES_US

DRAWN, OTHER = "sha256:" + "2b" * 32, "sha256:" + "1a" * 32
LABELS = f"model.m.digest.{DRAWN}.entry.split"


def arm(*lines: str) -> ArmCounters:
    arms = parse("\n".join(lines), {})["m"].slots[0]
    return arms[DRAWN].counters()


def request(tries: int, code: int, grpc: str = "", flags: str = "-") -> str:
    by = OTHER if tries == 2 else DRAWN
    labels = f"{LABELS}_grpc" if grpc else LABELS
    return f"sli.request.{labels}.slot.0.by.{by}.tries.{tries}.code.{code}.grpc.{grpc}.flags.{flags}: B1e+09(0,7)"


@pytest.mark.parametrize(
    ("code", "grpc", "flags", "expected"),
    [
        (200, "0", "-", "decided"),
        (500, "", "-", "failed"),
        (504, "", "UT", "failed"),
        (200, "14", "UT", "failed"),
        (503, "", "-", "failed"),
        (429, "", "UO", "shed"),
        (200, "8", "UO", "shed"),
        (429, "", "-", "shed"),  # the server's own queue was full
        (200, "8", "-", "shed"),
        (0, "", "DC", "undecided"),
        (200, "1", "-", "undecided"),
    ],
)
def test_a_first_attempt_is_answered_failed_shed_or_undecided(code: int, grpc: str, flags: str, expected: str) -> None:
    one = arm(request(1, code, grpc, flags))
    found = {"shed": one.shed, "failed": one.failed, "decided": one.decided - one.failed}
    found["undecided"] = one.routed - one.decided - one.shed
    assert {name for name, count in found.items() if count} == {expected}
    assert one.routed == 7


@pytest.mark.parametrize("by", ["-gateway", "deadline-gateway", "server-"])
@pytest.mark.parametrize(
    ("tries", "code", "flags"), [(1, 200, "-"), (2, 200, "-"), (2, 500, "-"), (1, 429, "UO"), (1, 0, "DC")]
)
def test_what_the_candidate_had_no_room_for_is_shed_whatever_stable_made_of_it(
    by: str, tries: int, code: int, flags: str
) -> None:
    line = request(tries, code, flags=flags).replace(f".tries.{tries}", f".tries.{tries}.shed.{by}")
    counted = parse(line, {})["m"]
    one = counted.slots[0][DRAWN].counters()
    assert (one.routed, one.shed, one.decided, one.failed) == (7, 7, 0, 0)
    assert counted.user_errors == (7 if code in (429, 500) else 0)


def test_a_request_that_nothing_refused_says_so() -> None:
    assert arm(request(1, 200).replace(".tries.1", ".tries.1.shed.--")).decided == 7


@pytest.mark.parametrize(
    ("code", "grpc", "flags", "expected"),
    [
        (200, "0", "-", "saved"),
        (500, "", "-", "common"),
        (200, "13", "-", "common"),
        (503, "", "UC", "common"),
        (400, "", "-", "common"),
        (429, "", "UO", "neither"),
        (429, "", "-", "neither"),
        (200, "8", "-", "neither"),
        (504, "", "UT", "neither"),
        (504, "", "-", "neither"),
        (200, "14", "UT", "neither"),
        (200, "4", "-", "neither"),
        (0, "", "DC", "neither"),
    ],
)
def test_a_second_attempt_tells_whether_it_was_saved_or_fails_everywhere(
    code: int, grpc: str, flags: str, expected: str
) -> None:
    one = arm(request(2, code, grpc, flags))
    found = {"saved": one.saved, "common": one.common, "neither": one.failed - one.saved - one.common}
    assert {name for name, count in found.items() if count} == {expected}
    assert (one.routed, one.decided, one.failed, one.shed) == (7, 7, 7, 0)


@pytest.mark.parametrize(
    ("code", "grpc", "flags"),
    [(400, "", "-"), (408, "", "-"), (408, "", "SI"), (413, "", "-"), (415, "", "-"), (431, "", "-"), (200, "3", "-"),
     (200, "3", "SI"), (200, "8", "-")],
)  # fmt: skip
def test_what_the_guard_refused_is_nobodys_failure(code: int, grpc: str, flags: str) -> None:
    line = request(0, code, grpc, flags).replace(f"by.{DRAWN}", "by.")
    one = arm(line)
    assert (one.routed, one.decided, one.failed, one.shed, one.refused) == (0, 0, 0, 0, 0)
    assert set(one.size_bytes.values()) == {0}
    assert parse(line, {})["m"].user_errors == 0


@pytest.mark.parametrize(
    ("code", "grpc", "tries"),
    [(400, "", 1), (401, "", 1), (405, "", 1), (413, "", 1), (404, "", 1), (404, "", 2), (200, "3", 1), (200, "7", 1),
     (200, "9", 1), (200, "11", 1), (200, "16", 1), (200, "5", 1), (200, "5", 2)],
)  # fmt: skip
def test_a_callers_mistake_is_counted_apart_and_as_nothing_else(code: int, grpc: str, tries: int) -> None:
    one = arm(request(tries, code, grpc))
    assert one == ArmCounters(refused=7, latency_us=one.latency_us, size_bytes=one.size_bytes)
    assert parse(request(tries, code, grpc), {})["m"].user_errors == 0


@pytest.mark.parametrize(
    "name", ["question", "question_grpc", "forced", "forced_grpc", "model_asleep", "own_answer", "x"]
)
@pytest.mark.parametrize(("code", "grpc"), [(200, ""), (500, ""), (200, "13"), (400, "")])
def test_what_is_no_inference_counts_for_no_release(name: str, code: int, grpc: str) -> None:
    """Readiness calls of a load balancer promoted a release that failed a tenth of its requests."""
    lines = [request(1, code, grpc)]
    lines.append(f"sli.latency.{LABELS}.try.1.slot.0.code.{code}.grpc.{grpc}.flags.-: B250(0,9) B1e+09(0,9)")
    page = "\n".join(re.sub(r"entry\.split(_grpc)?", f"entry.{name}", line) for line in lines)
    found = parse(page, {})
    counted = found["m"] if found else Counted()
    assert (counted.slots, counted.user_requests, counted.user_errors) == ({}, 0, 0)
    beside = {"question": "questions", "forced": "forced", "model_asleep": "asleep"}.get(name.removesuffix("_grpc"), "")
    assert {one: getattr(counted, one) for one in ("questions", "forced", "asleep")} == {
        one: 7 if one == beside else 0 for one in ("questions", "forced", "asleep")
    }


@pytest.mark.parametrize("grpc", ["2", "13", "14", "3", "8"])
def test_a_grpc_status_over_http_says_nothing(grpc: str) -> None:
    """Envoy derives one from the content type of the request, and any server may write one."""
    one = arm(request(1, 200, grpc).replace("split_grpc", "split"))
    assert (one.decided, one.failed, one.shed, one.refused) == (7, 0, 0, 0)


def test_a_callers_deadline_that_no_release_is_held_to_tells_nothing() -> None:
    line = request(1, 200, "4")
    assert arm(line).failed == 7
    one = arm(line.replace(".tries.1", ".tries.1.shed.deadline-"))
    assert (one.routed, one.decided, one.failed, one.shed) == (7, 0, 0, 0)
    took = f"sli.latency.{LABELS}_grpc.try.1.slot.0.code.200.grpc.4.flags.{{}}: B250(0,9) B1e+09(0,9)"
    assert parse(took.format("-"), {}) == {}
    assert arm(took.format("UT")).timed == 9


@pytest.mark.parametrize(
    ("code", "grpc", "flags"), [(503, "", "UH"), (200, "14", "UH"), (429, "", "UO"), (200, "8", "UO")]
)
def test_what_was_tried_nowhere_for_want_of_a_server_is_an_error_for_its_user(code: int, grpc: str, flags: str) -> None:
    assert parse(request(0, code, grpc, flags), {})["m"].user_errors == 7


@pytest.mark.parametrize(("code", "flags"), [(500, "-"), (504, "UT"), (429, "UO"), (429, "-"), (408, "SI")])
def test_a_user_who_gets_no_answer_sees_an_error(code: int, flags: str) -> None:
    assert parse(request(1, code, "", flags), {})["m"].user_errors == 7


def test_attempts_are_timed_unless_they_were_shed_or_given_up() -> None:
    def line(tries: int, flags: str, under: int, count: int) -> str:
        buckets = " ".join(f"B{edge / 1000:g}(0,{under if edge <= 1_000_000 else count})" for edge in EDGES_US)
        code = 0 if flags in ("UT", "DC") else 200
        return f"sli.latency.{LABELS}.try.{tries}.slot.0.code.{code}.grpc..flags.{flags}: {buckets} B1e+09(0,{count})"

    shed = line(1, "UO", 40, 40).replace("code.200", "code.429")
    one = arm(line(1, "-", 5, 10), line(1, "UT", 0, 3), shed, line(2, "-", 6, 6), line(1, "DC", 2, 8))
    assert (one.timed, one.latency_us[1_000_000], one.latency_us[2_000_000]) == (13, 5, 13)
    assert (one.aborted, one.aborted_us[1_000_000], one.answered) == (8, 2, 10)
    begun = arm(line(1, "DC", 2, 8), line(1, "DC", 1, 5).replace("code.0", "code.200"))
    assert (begun.aborted, begun.given_up) == (13, 8)  # a stream that had begun to answer


def test_a_late_first_attempt_is_timed_once_and_not_by_the_log_of_attempts() -> None:
    """It ends with its request, when the number of the attempt is that of the second one."""
    late = f"sli.latency_late.{LABELS}.slot.0: B250(0,0) B3000(0,7) B1e+09(0,7)"
    attempt = f"sli.latency.{LABELS}.try.2.slot.0.flags.UT: B250(0,0) B3000(0,7) B1e+09(0,7)"
    one = arm(late, attempt, request(2, 200))
    assert (one.timed, one.latency_us[250_000], one.latency_us[3_000_000]) == (7, 0, 7)
    for shed in (".shed.--", ".shed.", ".shed"):
        assert arm(late.replace(".slot.0", f".slot.0{shed}"), request(2, 200)).timed == 7


@pytest.mark.parametrize("shed", ["-gateway", "server-", "deadline-gateway"])
def test_a_late_answer_in_the_place_of_a_shed_attempt_is_not_timed(shed: str) -> None:
    late = f"sli.latency_late.{LABELS}.slot.0.shed.{shed}: B250(0,0) B3000(0,7) B1e+09(0,7)"
    assert arm(late, request(2, 200)).timed == 0


def test_what_failed_is_timed_and_is_no_answer() -> None:
    """A server that is gone refuses in no time: its latency must not be shown as that of answers."""

    def line(code: int, flags: str, count: int) -> str:
        buckets = " ".join(f"B{edge / 1000:g}(0,{count})" for edge in EDGES_US)
        return f"sli.latency.{LABELS}.try.1.slot.0.code.{code}.grpc..flags.{flags}: {buckets} B1e+09(0,{count})"

    one = arm(line(200, "-", 4), line(400, "-", 1), line(503, "-", 20), line(0, "UF", 30))
    assert (one.timed, one.answered, one.answered_us[1_000_000]) == (54, 4, 4)  # a caller's mistake is not timed


@pytest.mark.parametrize(
    ("code", "grpc", "flags", "shed"), [(429, "", "UO", 7), (200, "8", "-", 7), (503, "", "-", 0), (200, "14", "UT", 0)]
)
def test_what_was_shed_is_told_apart_from_what_failed(code: int, grpc: str, flags: str, shed: int) -> None:
    found = parse(request(1, code, grpc, flags), {})["m"].counters("gateway", "epoch", datetime(2026, 1, 1, tzinfo=UTC))
    assert (found.user_errors, found.user_shed) == (7, shed)


@pytest.mark.parametrize(("tries", "code"), [(1, 200), (2, 200), (1, 500), (2, 503)])
def test_a_candidate_in_stables_place_is_no_evidence_for_either_release(tries: int, code: int) -> None:
    line = re.sub(r"by\.[^.]*\.", "by.spare.", request(tries, code))
    one = arm(line)
    assert (one.routed, one.decided, one.failed, one.saved, one.common) == (7, 0, 0, 0, 0)
    timed = f"sli.latency.model.m.digest.spare.entry.split.try.1.slot.0.code.{code}.grpc..flags.-: B1000(0,7)"
    assert parse(timed, {}) == {}
