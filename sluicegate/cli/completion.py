"""`sluicegate completion`: completes commands, verbs and options in a shell, from the parser itself and without a server."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluicegate.cli import exits

if TYPE_CHECKING:
    from sluicegate.cli.output import Output

SHELLS = ("bash", "zsh", "fish")
ABOUT = """Prints a script for your shell. To have it in every new shell:
  bash   sluicegate completion bash > ~/.local/share/bash-completion/completions/sluicegate
  zsh    sluicegate completion zsh > ~/.sluicegate-completion && echo 'source ~/.sluicegate-completion' >> ~/.zshrc
  fish   sluicegate completion fish > ~/.config/fish/completions/sluicegate.fish
Print it anew after an update."""
#: Finds the longest run of words that is a command, then offers what may follow it; a file where nothing does.
_BASH = """_sluicegate() {{
    local word path="" words="" i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case "$path/$word" in
            {paths}) path="$path/$word" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _sluicegate sluicegate
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="Print a script that completes commands in your shell",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from sluicegate.cli.main import whole_parser  # it lists this module

    script = script_for(arguments.shell, whole_parser())
    output.result({"shell": arguments.shell, "script": script}, script.splitlines())
    return exits.OK


def script_for(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script, ending in a newline."""
    found = {path: (helps, options) for path, helps, options in _places(parser)}
    if shell == "fish":
        return "".join(f"{line}\n" for line in _fish(found))
    cases = "\n".join(
        f'        {shlex.quote(path)}) words="{" ".join([*helps, *options])}" ;;'
        for path, (helps, options) in found.items()
    )
    paths = "|".join(shlex.quote(path) for path in found if path)
    return (_ZSH if shell == "zsh" else "") + _BASH.format(paths=paths, cases=cases)


def _places(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """(path such as `/rollout/start`, what may follow with its help, the long options), the root first."""
    options = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    below = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
    chosen = next((one for one in parser._actions if not one.option_strings and one.choices and one is not below), None)
    helps = {one.dest: one.help or "" for one in below._choices_actions} if below else {}
    yield path, helps or {str(choice): "" for choice in (chosen.choices if chosen and chosen.choices else ())}, options
    for name, child in (below.choices if below else {}).items():
        yield from _places(child, f"{path}/{name}")


def _fish(found: dict[str, tuple[dict[str, str], list[str]]]) -> Iterator[str]:
    for path, (helps, options) in found.items():
        words = path.strip("/").split("/") if path else []
        seen = [f"__fish_seen_subcommand_from {word}" for word in words]
        where = "; and ".join([*seen, *([f"not __fish_seen_subcommand_from {' '.join(helps)}"] if helps else [])])
        condition = f" -n {shlex.quote(where)}" if where else ""
        for name, text in helps.items():
            yield f"complete -c sluicegate -f{condition} -a {shlex.quote(name)} -d {shlex.quote(text)}"
        for option in options:
            yield f"complete -c sluicegate{condition} -l {option.removeprefix('--')}"
