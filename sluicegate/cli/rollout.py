"""`sluicegate rollout …` and `sluicegate rollback`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.client import Client
from sluicegate.cli.errors import Problem
from sluicegate.cli.folder import read_yaml
from sluicegate.cli.naming import model_path, release_of
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect

POLL_S = 0.5
#: A reason that only counts on is said this often.
SAY_EVERY_S = 5.0
PRODUCTION = "production"
FINAL = frozenset({"promoted", "rolled_back", "rejected", "cancelled", "superseded", "stuck"})
#: verb → (help, shuts: a verb that only takes traffic away is repeated when the version moved meanwhile)
VERBS: dict[str, tuple[str, bool]] = {
    "pause": ("Stop advancing; the weight stays, and a breach still rolls back", True),
    "resume": ("Go on after a pause", False),
    "approve": ("Say yes to exactly the digests that you looked at", False),
    "reject": ("Say no to a rollout that waits for approval", False),
    "advance": ("Go to the next step without waiting for its evidence", False),
    "abort": ("Take all traffic from the candidate now", True),
    "cancel": ("Drop a rollout that has no traffic yet", True),
}
STALE_TRIES = 5


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("rollout", help="Start, watch and steer rollouts").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser(
        "start",
        help="Move traffic to a release, step by step",
        description="Exit codes with --wait: "
        "0 promoted, 1 rolled back, cancelled or stuck, 2 infrastructure, 3 refused or rejected.",
    )
    parser.add_argument("release", metavar="RELEASE", help="the candidate, such as sentiment/r2")
    parser.add_argument("--environment", default=PRODUCTION)
    parser.add_argument("--policy", type=Path, metavar="YAML", help="a policy other than the model's")
    parser.add_argument("--wait", action="store_true", help="watch until it ends")
    parser.set_defaults(run=run_start)
    parser = verbs.add_parser("list", help="List rollouts, newest first")
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=20, metavar="N")
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser("status", help="Show a rollout now")
    parser.add_argument("rollout", type=int, metavar="ROLLOUT")
    parser.set_defaults(run=run_status)
    parser = verbs.add_parser("watch", help="Follow a rollout until it ends (exit 0 promoted, 1 rolled back)")
    parser.add_argument("rollout", type=int, metavar="ROLLOUT")
    parser.set_defaults(run=run_watch)
    for verb, (text, _) in VERBS.items():
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("rollout", type=int, metavar="ROLLOUT")
        parser.add_argument("--reason", required=verb != "approve", default="", help="one sentence, kept for good")
        parser.set_defaults(run=run_verb, verb=verb)
    parser = commands.add_parser("rollback", help="Send a model's traffic back to its stable release now")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--environment", default=PRODUCTION)
    parser.add_argument("--reason", required=True, help="one sentence, kept for good")
    parser.set_defaults(run=run_rollback)


def start(client: Client, release: str, *, environment: str, policy: dict[str, Any] | None = None) -> dict[str, Any]:
    model, number = release_of(release)
    body = {"model": model, "candidate": number, "environment": environment}
    started: dict[str, Any] = client.post("/rollouts", body if policy is None else {**body, "policy": policy})
    return started


def act(client: Client, rollout_id: int, verb: str, reason: str) -> dict[str, Any]:
    """The rollout after the verb. A verb that shuts is sent again when the version moved meanwhile; no other is."""
    for attempt in range(STALE_TRIES):
        version = client.get(f"/rollouts/{rollout_id}")["version"]
        try:
            done: dict[str, Any] = client.post(f"/rollouts/{rollout_id}/{verb}", {"reason": reason}, version=version)
            return done
        except Problem as problem:
            if problem.status != 412 or not VERBS[verb][1] or attempt == STALE_TRIES - 1:
                raise
    raise AssertionError("the last try raised or returned")


def watch(
    client: Client, rollout_id: int, output: Output, *, on_view: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """The rollout at its end. Says every change of state, step and weight, and a changed reason every few seconds."""
    said: tuple[Any, ...] = ()
    said_line, said_at = "", 0.0
    with output.progress(f"Rollout {rollout_id}") as meter:
        while True:
            view: dict[str, Any] = client.get(f"/rollouts/{rollout_id}")
            if on_view:
                on_view(view)
            place = (view["state"], view.get("step_index"), view.get("weight_bp"))
            line = status_line(view)
            is_due = line != said_line and time.monotonic() - said_at >= SAY_EVERY_S
            if (place != said or is_due) and not output.as_json:
                output.say(f"  {line}")
                said, said_line, said_at = place, line, time.monotonic()
            if output.is_terminal:
                meter(int(view.get("weight_bp") or 0) // 100, 100, "% of traffic")
            if view["state"] in FINAL:
                return view
            time.sleep(POLL_S)


def status_line(view: dict[str, Any]) -> str:
    """`shifting  25 %  step 2 of 4. The reason.`; the bake is a stage of its own, not a step."""
    index = view.get("step_index")
    count = sum(1 for step in view.get("steps") or [] if step.get("name") != "bake")
    is_stepping = view["state"] in {"shifting", "paused"} and isinstance(index, int) and 0 <= index < count
    place = f"  step {index + 1} of {count}" if is_stepping and isinstance(index, int) else ""
    return f"{view['state']}  {int(view.get('weight_bp') or 0) / 100:g} %{place}. {view.get('reason', '')}".rstrip()


def run_start(arguments: argparse.Namespace, output: Output) -> int:
    policy = read_yaml(arguments.policy) if arguments.policy else None
    with connect(arguments.server) as client:
        started = start(client, arguments.release, environment=arguments.environment, policy=policy)
        if arguments.wait:
            return _end(watch(client, started["id"], output), output)
    lines = [
        f"Rollout {started['id']} of {arguments.release} to {arguments.environment}: {status_line(started)}",
        f"Next: sluicegate rollout watch {started['id']}",
    ]
    output.result(started, lines)
    return exits.OK


def run_watch(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        return _end(watch(client, arguments.rollout, output), output)


def _end(view: dict[str, Any], output: Output) -> int:
    output.result(view, [f"Rollout {view['id']} ended: {view['state']}. {view.get('reason', '')}".rstrip()])
    return exits.of_rollout(view["state"])


def run_status(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        view = client.get(f"/rollouts/{arguments.rollout}")
    output.result(view, [status_line(view)])
    return exits.of_rollout(view["state"]) if view["state"] in FINAL else exits.OK


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
            r["state"],
            f"{int(r.get('weight_bp') or 0) / 100:g} %",
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
    with connect(arguments.server) as client:
        view = act(client, arguments.rollout, arguments.verb, arguments.reason)
    output.result(view, [f"Rollout {arguments.rollout}: {status_line(view)}"])
    return exits.OK


def run_rollback(arguments: argparse.Namespace, output: Output) -> int:
    body = {"environment": arguments.environment, "reason": arguments.reason}
    with connect(arguments.server) as client:
        done = client.post(f"{model_path(arguments.model)}/rollback", body)
    output.result(
        done,
        [f"{arguments.model} in {arguments.environment}: {status_line(done) if 'state' in done else 'rolled back'}"],
    )
    return exits.OK
