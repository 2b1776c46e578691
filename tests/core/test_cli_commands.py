"""The list of commands, and its imports."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.cli.commands import COMMANDS
from sluicegate.cli.main import build_parser, whole_parser

ROOT = Path(__file__).resolve().parents[2]


def commands_of(parser: argparse.ArgumentParser) -> dict[str, str | None]:
    [below] = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return {one.dest: one.help for one in below._choices_actions}


def test_the_list_says_what_the_commands_say_of_themselves() -> None:
    listed = {name: command.help for name, command in COMMANDS.items()}
    assert commands_of(build_parser(frozenset())) == listed
    whole = commands_of(whole_parser())
    assert whole == listed


def test_help_imports_neither_the_client_nor_what_commands_need() -> None:
    program = (
        "import sys\n"
        "from sluicegate.cli.main import main\n"
        "main(['--help'])\n"
        "print(sorted({'httpx', 'rich', 'yaml', 'cryptography', 'django', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "rollback" in done.stdout and done.stderr == "[]\n"


@pytest.mark.parametrize("words", [["rollout", "--help"], ["--server", "http://x", "rollout", "--help"]])
def test_a_command_is_whole_when_it_is_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from sluicegate.cli.main import main

    assert main(words) == 0
    assert "promote" in capsys.readouterr().out


def test_what_is_no_command_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    from sluicegate.cli.main import main

    for words in (["rolout", "list"], ["node", "list"], ["release", "retire", "sentiment/r1"], ["release"]):
        assert main(words) == 3
        said = capsys.readouterr().err
        assert said.splitlines()[-1].endswith("--help; all other operations of the server: sluicegate api --help")
        assert words[0] in ("rolout", "node") or "VERB" in said
    assert main(["rollout", "watch"]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "Next: sluicegate rollout watch --help"
