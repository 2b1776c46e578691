"""`sluicegate rollout …` and `sluicegate rollback`."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from accounts.core.quantities import weight_text
from sluicegate.cli import exits, preview
from sluicegate.cli.errors import CommandError, Problem, refuse
from sluicegate.cli.output import Output
from sluicegate.cli.policies import add_policy_options, policy_in
from sluicegate.cli.session import connect
from sluicegate.client import Client, StillRunning
from sluicegate.client.client import ROLLOUT_ENDS

#: A reason in other words is said at most this often, and one that only counts on this often.
SAY_EVERY_S, SAY_COUNT_EVERY_S = 5.0, 300.0
PRODUCTION = "production"
#: What a person or CI may do to a rollout, and how it is explained.
VERBS: dict[str, str] = {
    "pause": "Stop advancing; the weight stays, and a breach still rolls back",
    "resume": "Go on after a pause, or end the wait before another look",
    "approve": "Say yes to exactly the digests that you looked at, for the next stage or --stage",
    "reject": "Say no for good: it ends, and traffic that it has is taken back",
    "advance": "Go to the next stage without waiting for its evidence",
    "promote": "Promote now without waiting for evidence; while stable has no server, give it all traffic",
    "abort": "Take all traffic from the candidate now, or end a rollout without traffic",
    "cancel": "Drop a rollout that has no traffic yet",
}
#: Where the address has another word than the command.
PATHS = {"promote": "promote-now"}
_REASON = "one sentence, kept for good"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("rollout", help="Start, watch and steer rollouts").add_subparsers(
        metavar="VERB", required=True
    )
    _add_start(verbs)
    parser = verbs.add_parser("list", help="List rollouts, newest first")
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=20, metavar="N")
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("status", help="Show a rollout now: its state, its stages and its approvals")
    parser.add_argument("rollout", type=int, metavar="ROLLOUT")
    parser.set_defaults(run=run_status)
    parser = verbs.add_parser("watch", help="Follow a rollout until it ends (exit 0 promoted, 1 rolled back)")
    parser.add_argument("rollout", type=int, metavar="ROLLOUT")
    _add_timeout(parser)
    parser.set_defaults(run=run_watch)
    for verb, text in VERBS.items():
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("rollout", type=int, metavar="ROLLOUT")
        parser.add_argument("--reason", required=verb != "approve", default="", help=_REASON)
        if verb == "approve":
            parser.add_argument("--stage", help="start, step 2, …, bake or promote; the next that lacks one by default")
        parser.set_defaults(run=run_verb, verb=verb)
    parser = commands.add_parser(
        "rollback",
        help="Send a model's traffic back now",
        description="To the stable release of its rollout or, after a promotion, to the release before, while it is kept warm.",
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--environment", default=PRODUCTION)
    parser.add_argument("--reason", required=True, help=_REASON)
    parser.set_defaults(run=run_rollback)


def _add_start(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "start",
        help="Move traffic to a release, step by step",
        description="Finds the rollout of this release under this policy if it is active, so that a job may be run again. "
        "Exit codes with --wait: 0 promoted or stable already, 1 rolled back, cancelled or stuck, also by an earlier rollout "
        "of this release, 2 infrastructure, 3 refused, rejected, or another release is being rolled out, 4 it is paused, "
        "--timeout passed, or the token ended; it goes on waiting for an approval. "
        "With --dry-run: 0 it would start, 3 it would be refused.",
    )
    parser.add_argument("release", metavar="RELEASE", help="the candidate, such as sentiment/r2")
    parser.add_argument("--environment", default=PRODUCTION)
    add_policy_options(parser)
    parser.add_argument("--reason", default="", help=_REASON)
    parser.add_argument(
        "--again", action="store_true", help="also if the release was rolled back, reverted or rejected there before"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--dry-run", action="store_true", help="preview the rollout, and create nothing")
    either.add_argument("--wait", action="store_true", help="watch until it ends, or is paused")
    _add_timeout(parser)
    parser.set_defaults(run=run_start)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="stop waiting after this long (exit 4); the rollout goes on by itself. Without it: until it ends",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time to wait; write seconds, such as 3600")
    return seconds


def act(client: Client, rollout_id: int, verb: str, reason: str, **more: Any) -> dict[str, Any]:
    """The rollout after the verb, in the command's own words for it."""
    return client.act(rollout_id, PATHS.get(verb, verb), reason, **more)


def watch(
    client: Client,
    rollout_id: int,
    output: Output,
    *,
    on_view: Callable[[dict[str, Any]], None] | None = None,
    timeout_s: float | None = None,
    ends_paused: bool = False,
) -> dict[str, Any]:
    """The rollout at its end. Says every change of state, step and weight, and a reason in other words.

    Raises CommandError (exit 4) after `timeout_s` and, with `ends_paused`, once it is paused: only a person ends that.
    """
    said = _Printed()

    def look(view: dict[str, Any]) -> None:
        if on_view:
            on_view(view)
        if not output.as_json:
            for line in said.news(view, time.monotonic()):
                output.say(line)
        if output.is_terminal:
            meter(int(view.get("weight_bp") or 0) // 100, 100, "% of traffic")
        if ends_paused and view["state"] == "paused":
            raise _under_way(
                view,
                f"Rollout {rollout_id} is paused, and only a person ends that. {view.get('reason', '')}".rstrip(),
                f"sluicegate rollout resume {rollout_id} --reason …, or rollout abort; then sluicegate rollout "
                f"watch {rollout_id}.",
            )

    with output.progress(f"Rollout {rollout_id}") as meter:
        try:
            return client.wait_for_rollout(rollout_id, timeout_s=timeout_s, on_look=look)
        except StillRunning as late:
            raise _under_way(
                late.run,
                f"Rollout {rollout_id} did not end within {timeout_s:g} s; it goes on by itself: {status_line(late.run)}",
                f"sluicegate rollout watch {rollout_id}, or sluicegate diagnose {rollout_id}.",
            ) from None


def _under_way(view: dict[str, Any], message: str, next_step: str) -> CommandError:
    return CommandError(message, exit_code=exits.UNDER_WAY, next_step=next_step, rollout=view)


class _Printed:
    """Lines already shown of a rollout, so that no line repeats."""

    def __init__(self) -> None:
        self.place: tuple[Any, ...] = ()
        self.line = ""
        self.stop: list[str] = []
        self.at = 0.0

    def news(self, view: dict[str, Any], now: float) -> Iterator[str]:
        """The next line, if the state changed and its time has come; once, a notice of a missing approval."""
        if (stop := _stop_line(view)) != self.stop:
            self.stop = stop
            yield from stop
        place, line = (view["state"], view.get("step_index"), view.get("weight_bp")), status_line(view)
        is_new_place = place != self.place
        # numbers that count on are no news
        every_s = SAY_EVERY_S if _words(line) != _words(self.line) else SAY_COUNT_EVERY_S
        if not is_new_place and (line == self.line or now - self.at < every_s):
            return
        self.place, self.line, self.at = place, line, now
        yield f"  {line}"
        if is_new_place and view["state"] == "awaiting_approval" and not view.get("blocked"):
            yield f"  It waits for an approval: sluicegate rollout approve {view['id']}"


def _words(line: str) -> str:
    return re.sub(r"[0-9]+([.,:][0-9]+)*", "0", line)


def status_line(view: dict[str, Any]) -> str:
    """`shifting  25 %  step 2 of 4. The reason.`; the bake is a stage of its own, not a step."""
    index = view.get("step_index")
    count = sum(1 for step in view.get("steps") or [] if step.get("name") != "bake")
    is_stepping = view["state"] in {"shifting", "paused"} and isinstance(index, int) and 0 <= index < count
    place = f"  step {index + 1} of {count}" if is_stepping and isinstance(index, int) else ""
    blocked = view.get("blocked")
    said = f"It cannot go on: {blocked['message']} {blocked['next_step']}" if blocked else view.get("reason", "")
    return f"{view.get('outcome', view['state'])}  {weight_text(view.get('weight_bp') or 0)}{place}. {said}".rstrip()


def status_lines(view: dict[str, Any]) -> list[str]:
    """The status line, then approvals, missing approvals, freezes and the undo window."""
    lines = [status_line(view), *_crossing_lines(view), *_stop_line(view), *_target_line(view)]
    for stage in view.get("approval_stages") or []:
        by = f" by {', '.join(stage['by'])}" if stage["by"] else ""
        lines.append(f"  {stage['stage']}: {stage['given']} of {stage['needed']} approvals{by}")
    for one in view.get("approvals") or []:
        if one.get("why_void"):
            lines.append(f"  the approval of {one['stage']} by {one['approver']} does not count: {one['why_void']}")
        elif one.get("expires_at"):
            lines.append(
                f"  the approval of {one['stage']} by {one['approver']} counts until {one['expires_at'][:16]} UTC"
            )
    if view.get("next_approval"):
        who = ", ".join(view.get("may_approve") or []) or "no approver yet"
        lines.append(f"  next to approve: {view['next_approval']}; those who may: {who}")
    if frozen := view.get("frozen"):
        why = "".join(f" ({one})" for one in (frozen.get("local_until"), frozen["why"]) if one)
        lines.append(f"  changes are frozen until {frozen['until'][:16]} UTC{why}")
    return [*lines, *_undo_line(view)]


def _crossing_lines(view: dict[str, Any]) -> list[str]:
    """Each time that its traffic was taken away for another look."""
    second = view.get("second_look") or {}
    return [
        f"  look {number} of {second['looks']}: {crossing['said']}"
        for number, crossing in enumerate(second.get("crossings") or [], start=1)
    ]


def _stop_line(view: dict[str, Any]) -> list[str]:
    """The later stage that it cannot enter as it is; it goes on until then."""
    stop = view.get("will_stop")
    return [f"  It will stop before {stop['at_stage']}: {stop['message']} {stop['next_step']}"] if stop else []


def _target_line(view: dict[str, Any]) -> list[str]:
    """The rollback target, if it has no server or if the candidate took its place."""
    target = view.get("target")
    if not target or not (target["is_missing"] or view.get("displaced")):
        return []
    return [f"  {target['message']}"]


def _undo_line(view: dict[str, Any]) -> list[str]:
    back = view.get("undo_window")
    if not back:
        return []
    return [f"  until {back['until'][:19]} UTC one step goes back to {back['to']}: sluicegate rollback {view['model']}"]


def run_start(arguments: argparse.Namespace, output: Output) -> int:
    policy = policy_in(arguments)
    if arguments.timeout is not None and not arguments.wait:
        raise refuse("--timeout is how long --wait waits.", "Add --wait, or leave --timeout out.")
    with connect(arguments.server) as client:
        if arguments.dry_run:
            body = client.rollout_body(arguments.release, arguments.environment, policy)
            found = client.post("/rollouts/preview", body | ({"again": True} if arguments.again else {}))
            output.result(found, preview.lines(found))
            return exits.OK if found["can_start"] else exits.REFUSED
        try:
            started = client.start_rollout(
                arguments.release,
                environment=arguments.environment,
                policy=policy,
                reason=arguments.reason,
                again=arguments.again,
            )
        except Problem as problem:
            if problem.code != "already_stable":
                raise
            output.result({"state": problem.code, "release": arguments.release}, [problem.message])
            return exits.OK
        if arguments.wait:
            return _end(watch(client, started["id"], output, timeout_s=arguments.timeout, ends_paused=True), output)
    lines = [
        f"Rollout {started['id']} of {arguments.release} to {arguments.environment}: {status_line(started)}",
        *([] if started["is_final"] else [f"Next: sluicegate rollout watch {started['id']}"]),
    ]
    output.result(started, lines)
    return exits.OK


def run_watch(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        return _end(watch(client, arguments.rollout, output, timeout_s=arguments.timeout), output)


def _end(view: dict[str, Any], output: Output) -> int:
    lines = [f"Rollout {view['id']} ended: {view.get('outcome', view['state'])}. {view.get('reason', '')}".rstrip()]
    if view["state"] == "stuck":
        lines.append(
            f"Next: sluicegate diagnose {view['id']}; a gateway did not acknowledge that the traffic goes back."
        )
    output.result(view, [*lines, *_undo_line(view)])
    return exits.of_rollout(view["state"])


def run_status(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        view = client.get(f"/rollouts/{arguments.rollout}")
    output.result(view, status_lines(view))
    return exits.of_rollout(view["state"]) if view["state"] in ROLLOUT_ENDS else exits.OK


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    params = {"model": arguments.model} if arguments.model else {}
    with connect(arguments.server) as client:
        rollouts = list(client.pages("/rollouts", limit=arguments.limit, **params))
    rows = (
        [
            r["id"],
            r.get("model"),
            name_of(r.get("candidate")),
            r.get("environment"),
            r.get("outcome", r["state"]),
            weight_text(r.get("weight_bp") or 0),
            r.get("reason"),
        ]
        for r in rollouts
    )
    columns = ("rollout", "model", "candidate", "environment", "state", "weight", "reason")
    output.table(rollouts, columns, rows, empty="There are no rollouts yet: sluicegate rollout start RELEASE.")
    return exits.OK


def name_of(release: Any) -> str:
    """`r2`, whether the API gives a name or a whole release."""
    return str(release.get("name", "")) if isinstance(release, dict) else str(release or "")


def run_verb(arguments: argparse.Namespace, output: Output) -> int:
    stage = getattr(arguments, "stage", None)
    with connect(arguments.server) as client:
        view = act(client, arguments.rollout, arguments.verb, arguments.reason, **({"stage": stage} if stage else {}))
    output.result(view, [f"Rollout {arguments.rollout}: {status_lines(view)[0]}", *status_lines(view)[1:]])
    return exits.OK


def run_rollback(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        done = client.roll_back(arguments.model, environment=arguments.environment, reason=arguments.reason)
    said = done["reason"] if done["state"] == "reverted" else status_line(done)
    output.result(done, [f"{arguments.model} in {arguments.environment}: {said}"])
    return exits.OK
