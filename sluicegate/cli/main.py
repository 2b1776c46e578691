"""Entry point of the command line: the parser of `sluicegate COMMAND …` and its dispatch."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import NoReturn

from sluicegate.cli import exits
from sluicegate.cli.commands import COMMANDS

ABOUT = """Releases inference models safely: sealed releases, gates on real servers, rollouts by evidence,
automatic rollback."""
EPILOG = """administration and everything else: sluicegate api METHOD PATH (sluicegate api --help)

exit codes:
  0  ok
  1  a gate failed, a digest did not match, or the rollout was rolled back
  2  infrastructure: a server cannot be reached or broke
  3  refused by policy, permission or validation, or wrong usage
  4  the wait ended and the rollout did not: --timeout passed, it is paused, or the token ended

environment:
  SLUICEGATE_URL      the server (also --server)
  SLUICEGATE_TOKEN    the token, for CI; people use `sluicegate login`
  SLUICEGATE_CA_FILE  CA certificates to trust beside the system's (also --ca-file); SSL_CERT_FILE stands in for the system's
  HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY  the way to the server
"""


class _Parser(argparse.ArgumentParser):
    """Wrong usage is exit 3: argparse's own 2 would read as an infrastructure error."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        has_verbs = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
        others = "; all other operations of the server: sluicegate api --help" if has_verbs else ""
        self.exit(exits.REFUSED, f"{self.prog}: {message}\nNext: {self.prog} --help{others}\n")


@cache  # it takes longer than most commands that one process runs after another
def build_parser(modules: frozenset[str]) -> argparse.ArgumentParser:
    """The parser of all commands: complete for these modules, with one line for every other command,
    so that a command never imports the modules of the others."""
    common = argparse.ArgumentParser(add_help=False)
    # given before or after the command; SUPPRESS keeps both values
    common.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print the result as one JSON document"
    )
    common.add_argument("--server", metavar="URL", default=argparse.SUPPRESS, help="the server to ask")
    common.add_argument(
        "--ca-file", metavar="FILE", default=argparse.SUPPRESS, help="CA certificates to trust beside the system's"
    )
    parser = _Parser(
        prog="sluicegate",
        description=ABOUT,
        epilog=EPILOG,
        parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    added: set[str] = set()
    for name, command in COMMANDS.items():
        if command.module not in modules:
            commands.add_parser(name, help=command.help)
        elif command.module not in added:
            added.add(command.module)
            import_module(f"sluicegate.cli.{command.module}").add_to(commands)
    for leaf in _leaves(parser):
        for action in common._actions:
            leaf._add_action(action)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Every command with all that it takes."""
    return build_parser(frozenset(command.module for command in COMMANDS.values()))


def _modules_for(argv: Sequence[str]) -> frozenset[str]:
    """The module of the command, or None for an unknown command."""
    words = iter(argv)
    for word in words:
        if word in ("--server", "--ca-file"):
            next(words, None)
        elif not word.startswith("-"):
            return frozenset({COMMANDS[word].module} if word in COMMANDS else ())
    return frozenset()


def _leaves(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Every command that does something, that is, has no commands below it."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        return [parser]
    return [leaf for action in below for child in dict.fromkeys(action.choices.values()) for leaf in _leaves(child)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        arguments = _parsed(build_parser(_modules_for(words)), words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else exits.REFUSED
    arguments.server = getattr(arguments, "server", None)
    return _run(arguments)


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Like `parse_args`, but `api` takes its fields behind options, too, which argparse leaves over."""
    arguments, rest = parser.parse_known_args(words)
    if rest and (not hasattr(arguments, "fields") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.fields = [*arguments.fields, *rest]
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    # Not above: help must not wait for the HTTP client and the progress bars.
    from sluicegate.cli.errors import exit_code_of
    from sluicegate.cli.output import Output
    from sluicegate.cli.session import use_ca_file
    from sluicegate.client.errors import ClientError

    use_ca_file(getattr(arguments, "ca_file", ""))

    output = Output(as_json=getattr(arguments, "json", False))
    try:
        return int(arguments.run(arguments, output))
    except ClientError as error:
        exit_code = exit_code_of(error)
        if output.as_json:
            output.result({**error.as_json(), "exit_code": exit_code})
        else:
            for line in error.lines():
                print(line, file=sys.stderr)
        return exit_code
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads has enough, as `head` has; nor does the end of the program write there then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the status after SIGPIPE
    except Exception:  # never 1, which means a bad release
        traceback.print_exc()
        print(
            "The command line broke, or the server is of another version than it (pip show sluicegate).",
            file=sys.stderr,
        )
        return exits.INFRASTRUCTURE


if __name__ == "__main__":
    sys.exit(main())
