"""`sluicegate up`, `sluicegate demo` and `sluicegate runtimes`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from registry.adapters.capability_evidence import capabilities
from registry.core.capabilities import MEANINGS
from sluicegate.cli import exits
from sluicegate.cli.errors import refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect, state_dir

CHECKOUT = Path(__file__).resolve().parents[2]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "up",
        help="Run everything on this machine",
        description="Starts PostgreSQL, Valkey, the web "
        "server, the worker, the node agent, the engine, the control plane and Envoy, all on loopback. "
        "Ctrl-C stops them all.",
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="where data, logs and secrets are kept (.state)")
    parser.add_argument("--port", type=int, metavar="N", help="port of the pages and the API")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what every process writes")
    parser.set_defaults(run=run_up)
    parser = commands.add_parser(
        "demo",
        help="Show it: five releases, live traffic, two automatic rollbacks",
        description="Brings everything up in a folder of its own, releases a sentiment model five times "
        "under live traffic, and reports measurements. Exits 0 only if every outcome is as expected.",
    )
    parser.add_argument("--exit", action="store_true", help="stop everything at the end (otherwise the pages stay up)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the measurements as JSON")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="folder for the demo's state (.state/demo, made anew)"
    )
    parser.set_defaults(run=run_demo)
    parser = commands.add_parser(
        "runtimes",
        help="List the runtime images that nodes offer",
        description="Each server and backend has a state: "
        + "; ".join(f"{state}: {meaning}" for state, meaning in MEANINGS.items())
        + ".",
    )
    parser.add_argument(
        "--states",
        action="store_true",
        help="the state of every server kind, backend, platform and GPU part instead; asks no server",
    )
    parser.set_defaults(run=run_runtimes)


def run_up(arguments: argparse.Namespace, output: Output) -> int:
    _require_service("up")
    from sluicegate.stack import Options, up  # the only command that runs anything itself

    return up(Options(state_dir=arguments.state or state_dir(), port=arguments.port, is_verbose=arguments.verbose))


def run_demo(arguments: argparse.Namespace, output: Output) -> int:
    _require_service("demo")
    from sluicegate.demo.story import tell

    return tell(output, state_dir=arguments.state, report_file=arguments.report, leave_up=not arguments.exit)


def _require_service(command: str) -> None:
    """Raises CommandError if only the client is installed: the service needs its packages and the checkout."""
    try:
        import django  # noqa: F401
    except ModuleNotFoundError:
        raise refuse(
            f"`sluicegate {command}` runs the service itself, and only the command line is installed here.",
            "Install sluicegate[server], or run `make setup` in a checkout.",
        ) from None
    if not (CHECKOUT / "manage.py").exists():
        raise refuse(
            f"`sluicegate {command}` runs from a checkout: the package holds no pages and no lock files of the servers.",
            f"Clone the repository and run `make {command}` there.",
        )


def run_runtimes(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.states:
        found = capabilities()
        lines = ([row["id"], row["name"], row["state"], row["instead"] or row["scope"]] for row in found)
        output.table(found, ("id", "name", "state", "scope"), lines, empty="")
        return exits.OK
    with connect(arguments.server) as client:
        runtimes = list(client.pages("/runtimes"))
    rows = ([r["image"], _server(r), _backends(r), r.get("node")] for r in runtimes)
    output.table(runtimes, ("image", "server", "backends", "node"), rows, empty="No node has reported a runtime yet.")
    return exits.OK


def _server(runtime: dict[str, Any]) -> str:
    return f"{runtime['server']} ({runtime['states']['server']})"


def _backends(runtime: dict[str, Any]) -> str:
    return ", ".join(f"{name} ({state})" for name, state in runtime["states"]["backends"].items())
