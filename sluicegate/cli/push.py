"""`sluicegate push`: a folder becomes a sealed release, or nothing at all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sluicegate.cli import check, exits, gates
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client import uploads

HELP = "Send a release folder: release.yaml, artifact/… and tokenizer/…"
ABOUT = """Reads DIR/release.yaml, hashes config.pbtxt and everything under artifact/ and tokenizer/, sends missing files
in parts, several at once, and seals the release after it has verified every file. A release exists as a whole or not at all:
if the server refuses it, it discards the draft, unless another push continues it. After a lost connection or command,
push the same folder again to resume. Pushing the same bytes twice, or twice at once, gives the same release.
Symbolic links are refused. Unpack an archive first."""


#: As `serving.traffic.core.routes.IN_FLIGHT_PER_INSTANCE`, which this program does not have.
IN_FLIGHT = 8


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("push", help=HELP, description=ABOUT)
    parser.add_argument("folder", type=Path, metavar="DIR", help="the release folder")
    parser.add_argument("--model", help="the model it belongs to, when release.yaml should not decide")
    parser.add_argument(
        "--connections", type=int, default=0, metavar="N", help=f"parts sent at once ({uploads.CONNECTIONS})"
    )
    parser.add_argument("--check", action="store_true", help="only show problems; send nothing")
    parser.add_argument("--wait", action="store_true", help="run the gates too, and wait for their verdict")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.check:
        return check.run(arguments, output)
    with connect(arguments.server) as client:
        release = client.push(
            arguments.folder, model=arguments.model, connections=arguments.connections, progress=output
        )
        name = f"{release['model']}/{release['name']}"
        release["warnings"] = warnings_of(release.get("manifest") or {})
        said = [f"{name} is sealed: {release['digest']}", *release["warnings"]]
        if not arguments.wait:
            output.result(release, [*said, f"Next: sluicegate gates {name} --wait"])
            return exits.OK
        for line in said:
            output.say(line)
        gate_run = gates.wait(client, client.start_gates(name, unless_passed=True), output)
        output.result({**release, "gate_run": gate_run}, gates.verdict_lines(name, gate_run))
        return exits.of_verdict(gate_run["verdict"])


def warnings_of(manifest: dict[str, Any]) -> list[str]:
    """Defaults of the release that its users would notice, a sentence each."""
    envelope = manifest.get("envelope") or {}
    units = [(one.get("throughput") or {}).get("unit") for one in envelope.get("performance") or ()]
    if (envelope.get("limits") or {}).get("max_concurrency") or "requests_per_s" in units:
        return []
    return [
        f"No bound is stated. Gateways let {IN_FLIGHT} requests at a time through to each model instance, half of them "
        "over each protocol, and refuse more (429), until a load gate has measured a full server. State "
        "envelope.limits.max_concurrency, or a throughput in envelope.performance, if callers come in greater numbers."
    ]
