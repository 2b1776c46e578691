"""The one table: what a request was for a release."""

from __future__ import annotations

import itertools

import pytest

from registry.core.kinds.triton import WORDS as TRITON
from registry.core.kinds.words import Words, meant_grpc, meant_status
from serving.traffic.core.outcomes import (
    EVIDENCE,
    GRPC,
    HTTP,
    Answer,
    Call,
    CountsFor,
    Drawn,
    Ended,
    Purpose,
    call_of,
    counts_for,
    drawn,
    route_name,
)

YES, NO = True, False


@pytest.mark.parametrize("pool", ["", "batch", "a-b"])
@pytest.mark.parametrize("protocol", [HTTP, GRPC])
@pytest.mark.parametrize("asked", [one for one in Purpose if one and one is not Purpose.ASLEEP])
def test_a_routes_name_tells_what_its_requests_ask_for(asked: Purpose, protocol: str, pool: str) -> None:
    assert call_of(route_name(asked, protocol, pool)) == Call(asked, protocol, pool)


@pytest.mark.parametrize(
    "name", ["", "-", "own_answer", "incoming", "splitting", "split.grpc", "refused", "no_release"]
)
def test_any_other_name_asks_nothing_of_a_release(name: str) -> None:
    assert call_of(name).asked is Purpose.NOTHING


def answer(protocol: str, status: int, grpc: int | None = None, flags: str = "-") -> Answer:
    return Answer.of(protocol, status, grpc, frozenset(flags.split(",")))


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (Ended.ANSWERED, [(HTTP, 200), (HTTP, 200, 13), (HTTP, 204), (HTTP, 302), (GRPC, 200, 0)]),
        (Ended.FAILED, [(HTTP, 500), (HTTP, 503), (HTTP, 503, None, "UC"), (HTTP, 0, None, "UF"), (GRPC, 200, 2), (GRPC, 200, 12),
                        (GRPC, 200, 10), (GRPC, 200, 17),
                        (GRPC, 200, 13), (GRPC, 200, 14), (GRPC, 200, 15), (GRPC, 503, None)]),
        (Ended.LATE, [(HTTP, 504), (HTTP, 504, None, "UT"), (GRPC, 200, 4), (GRPC, 200, 14, "UT")]),
        (Ended.SHED, [(HTTP, 429), (HTTP, 503, None, "UO"), (GRPC, 200, 8), (GRPC, 200, 14, "UO")]),
        (Ended.ABORTED, [(HTTP, 0), (HTTP, 0, None, "DC"), (HTTP, 200, None, "DC"), (GRPC, 200, 1), (GRPC, 200, 0, "DC")]),
        (Ended.MISTAKE, [(HTTP, 400), (HTTP, 401), (HTTP, 404), (HTTP, 405), (HTTP, 413), (HTTP, 415), (HTTP, 431),
                         *((GRPC, 200, one) for one in (3, 5, 7, 9, 11, 16))]),
    ],
)  # fmt: skip
def test_each_end_of_an_attempt_has_one_outcome(ended: Ended, told: list[tuple]) -> None:
    assert {one: answer(*one).ended for one in told} == dict.fromkeys(told, ended)


def test_only_an_inference_that_the_model_answered_or_failed_is_evidence() -> None:
    all_ways = [answer(p, s, g, f) for p, s, g, f in itertools.product((HTTP, GRPC), (0, 200, 400, 429, 500, 503, 504),
                (None, 0, 1, 2, 3, 4, 5, 8, 13, 14), ("-", "DC", "UT", "UC", "UO", "UF"))]  # fmt: skip
    evident = {Ended.ANSWERED, Ended.FAILED, Ended.LATE}
    for asked, one in itertools.product(Purpose, all_ways):
        found = counts_for(asked, one)
        if asked not in EVIDENCE or one.ended is Ended.MISTAKE:
            assert found == CountsFor(NO, NO, NO)
        else:
            assert found.is_evidence is (one.ended in evident) and found.is_routed
            assert found.is_timed is (found.is_evidence and not one.is_early)


@pytest.mark.parametrize(
    ("tries", "told", "expected"),
    [
        (0, (HTTP, 400), Drawn.NOTHING),
        (0, (GRPC, 200, 3), Drawn.NOTHING),
        (0, (HTTP, 503, None, "UH"), Drawn.UNDECIDED),
        (1, (HTTP, 200), Drawn.ANSWERED),
        (1, (HTTP, 400), Drawn.MISTAKE),
        (1, (HTTP, 404), Drawn.MISTAKE),
        (1, (HTTP, 500), Drawn.FAILED),
        (1, (HTTP, 0, None, "DC"), Drawn.UNDECIDED),
        (1, (GRPC, 200, 1), Drawn.UNDECIDED),
        (2, (HTTP, 200), Drawn.SAVED),
        (2, (HTTP, 500), Drawn.COMMON),
        (2, (HTTP, 400), Drawn.COMMON),  # stable calls a mistake what the first attempt failed on
        (2, (HTTP, 404), Drawn.MISTAKE),  # neither has it
        (2, (GRPC, 200, 5), Drawn.MISTAKE),
        (2, (HTTP, 429), Drawn.FAILED),
        (2, (GRPC, 200, 1), Drawn.FAILED),
    ],
)
def test_a_request_counts_by_all_its_attempts(tries: int, told: tuple, expected: Drawn) -> None:
    assert drawn(answer(*told), tries) is expected


def test_the_words_of_a_server_are_a_value() -> None:
    own = Words(mistakes=("bad body",), failures=("model crashed",), full="busy", grpc_mistakes=((13, "bad message"),))
    assert meant_status(own, 500, "bad body: 1", is_front=True) == 400
    assert meant_status(own, 500, "bad body: 1", is_front=False) == 500
    assert meant_status(own, 400, "model crashed", is_front=False) == 500
    assert meant_status(own, 503, "too busy now", is_front=False) == 429
    assert meant_status(Words(), 503, "Exceeds maximum queue size", is_front=False) == 503
    assert [
        meant_grpc(own, *one) for one in ((13, "bad message x"), (13, "a bad message"), (14, "so busy"), (3, "x"))
    ] == [3, 13, 8, 3]


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (500, "failed to parse the request JSON buffer: Invalid", 400),
        (500, "it failed to parse the request JSON buffer", 500),  # words that a model quotes
        (404, "Unable to find system shared memory region: 'x'", 400),
        (404, "Request for unknown model", 404),
        (400, "Failed to process the request(s) for model instance", 500),
        (400, "unexpected shape for input", 400),
        (503, "Exceeds maximum queue size", 429),
        (503, "Server is stopping", 503),
        (501, "Unsupported compression type", 400),
    ],
)
def test_tritons_words(status: int, said: str, expected: int) -> None:
    assert meant_status(TRITON, status, said, is_front=True) == expected
