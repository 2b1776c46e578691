"""`sluicegate gates`: runs a release's gates and waits for their verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client import Client, LostSight, StillRunning
from sluicegate.client.names import model_path, release_path

#: What a verdict looks like in a line.
SIGNS = {"passed": "✓", "failed": "✗", "undecided": "?", "errored": "!", "skipped": "-"}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "gates",
        help="Run a release's gates",
        description="Runs the gates of the model's policy over a sealed release. If they run already, or passed and all of "
        "that report still holds, that run is the answer. With --wait: exit 0 when all passed, 1 when one failed or stayed "
        "undecided, 2 when a check itself broke.",
    )
    parser.add_argument("release", metavar="RELEASE", help="such as sentiment/r2; of --explain, a model")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="run nothing; show each threshold's requirement, its duration, and the bound that a pass certifies",
    )
    parser.add_argument("--environment", help="where to run the release for it (the server's default is staging)")
    parser.add_argument(
        "--only-expired", action="store_true", help="reuse results of the newest report that are still valid"
    )
    parser.add_argument(
        "--again", action="store_true", help="run all of them, also if they passed and that still holds"
    )
    parser.add_argument("--wait", action="store_true", help="wait for the verdicts")
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="give up waiting after this long (1800)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        if arguments.explain:
            told = client.get(f"{model_path(arguments.release.partition('/')[0])}/gate-policy:explain")
            output.result(told, list(demand_lines(told["demands"])))
            return exits.OK
        started = client.start_gates(
            arguments.release,
            environment=arguments.environment,
            only_expired=arguments.only_expired,
            unless_passed=not (arguments.again or arguments.only_expired),
        )
        if not arguments.wait:
            stands = f"passed already; --again runs them anew: {started['url']}"
            if started["state"] != "finished":
                stands = f"are {started['state']}: {started['url']}"
            output.result(started, [f"Gates of {arguments.release} {stands}"])
            return exits.OK
        gate_run = wait(client, started, output, timeout_s=arguments.timeout)
        output.result(gate_run, verdict_lines(arguments.release, gate_run))
        return exits.of_verdict(gate_run["verdict"])


def wait(client: Client, started: dict[str, Any], output: Output, *, timeout_s: float = 1800) -> dict[str, Any]:
    """The finished gate run. Says each gate's verdict as it comes. Raises CommandError (exit 2) after `timeout_s`."""
    said: set[str] = set()
    with output.progress("Gates") as meter:
        try:
            gate_run = client.wait_for_gates(
                started, timeout_s=timeout_s, on_look=lambda found: _say_progress(found, said, meter, output)
            )
        except StillRunning:
            raise CommandError(
                f"The gates did not finish within {timeout_s:g} s; they go on by themselves.",
                exit_code=exits.INFRASTRUCTURE,
                next_step=f"Look at {started['url']}, or run the command again: it goes on with this run.",
            ) from None
        except LostSight as lost:
            raise CommandError(
                lost.message, exit_code=exits.INFRASTRUCTURE, next_step=lost.next_step, **lost.facts
            ) from None
    if gate_run["state"] == "cancelled":
        raise CommandError("The gates were cancelled.", exit_code=exits.FAILED, next_step="Start them again.")
    return gate_run


def _say_progress(gate_run: dict[str, Any], said: set[str], meter: Any, output: Output) -> None:
    runs = gate_run.get("gates", [])
    for gate in runs:
        if gate["verdict"] and gate["gate"] not in said:
            said.add(gate["gate"])
            if not output.as_json:
                output.say(gate_line(gate))
    current = next((gate for gate in runs if not gate["verdict"] and gate.get("started_at")), None)
    note = ""
    if current:
        total = current.get("progress_total") or 0
        counted = f" {current.get('progress_done', 0)}/{total}" if total else ""
        does = f": {current['reason']}" if current.get("reason") else ""  # such as its reason to wait
        note = f"{current['gate']}{counted}{does}"
    meter(len(said), len(runs), note)


def newest_verdict(client: Client, release: str) -> str:
    """Result of the release's newest gate run: a verdict, `running`, `cancelled`, or `not run`."""
    found = next(client.pages(f"{release_path(release)}/gate-runs", limit=1), None)
    if found is None:
        return "not run"
    over = found["state"] in {"finished", "cancelled"}
    return str(found["verdict"] or found["state"]) if over else "running"


def demand_lines(demands: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Two lines for each threshold: its requirement and duration, and the bound that a pass certifies."""
    for one in demands:
        times = [f"{one[name]:.3g} s" for name in ("least_s", "most_s") if one[name] is not None]
        takes = f" ({' to '.join(dict.fromkeys(times))})" if times else ""
        yield f"{one['field']}: {one['demands']}{takes}"
        yield f"  certifies: {one['certifies']}"


def gate_line(gate: dict[str, Any]) -> str:
    taken = f" Measured {gate['ended_at'][:10]}, taken over." if gate.get("reused_from") else ""
    return f"  {SIGNS.get(gate['verdict'], ' ')} {gate['gate']}: {gate['verdict']}. {gate['reason']}{taken}"


def verdict_lines(release: str, gate_run: dict[str, Any]) -> list[str]:
    verdict = gate_run["verdict"]
    lines = [f"{release}: gates {verdict}. {gate_run.get('reason', '')}".rstrip()]
    if verdict == "passed":
        lines.append(f"Next: sluicegate rollout start {release} --environment production")
    return lines
