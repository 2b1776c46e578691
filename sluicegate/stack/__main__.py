"""`python -m sluicegate.stack`: the stack without the command line around it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sluicegate.stack.machine import BASE_DIR, Options
from sluicegate.stack.run import up


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sluicegate.stack", description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=BASE_DIR / ".state", help="the folder with data, logs and secrets"
    )
    parser.add_argument("--port", type=int, help="port of the pages and the API")
    parser.add_argument("--ready-file", type=Path, help="write the addresses there once everything is ready")
    parser.add_argument("--any-ports", action="store_true", help="do not try the well-known ports first")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="set for every process")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what every process writes")
    said = parser.parse_args()
    env = dict(pair.split("=", 1) for pair in said.env)
    return up(
        Options(
            state_dir=said.state,
            port=said.port,
            is_verbose=said.verbose,
            ready_file=said.ready_file,
            wants_friendly_ports=not said.any_ports,
            env=env,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
