"""Every command that a text names exists: its verb, its options, and the operation of `sluicegate api`."""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from accounts.core.addresses import API
from sluicegate.cli.main import whole_parser

ROOT = Path(__file__).resolve().parent.parent
#: The change log names commands of the past.
SKIPPED = ("tests/", "CHANGELOG.md", "package-lock.json", "static/")
ENDINGS = {".md", ".py", ".html", ".txt", ".yaml", ".yml", ".sh", ".toml", ".js", ".json", ".service", ""}
CALL = re.compile(r"(?<![/\w])sluicegate ((?:--[\w-]+ )*)([a-z][\w-]*)\b((?:(?!, (?:or|and|then)\b| \| )[^`\n#<;])*)")
#: Words behind the name of the product that begin no command: a key's purpose, a line of a log.
NOT_COMMANDS = {"part", "starts"}
INLINE = re.compile(r"(?<!`)`(?!`)((?:[^`\n]|\n(?!\s*\n))+)`(?!`)")
VERBS = re.compile(r"[a-z][a-z-]*(\|[a-z][a-z-]*)*")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
FIELD = re.compile(r"""(?<![\w$.{"-])([a-z]\w*):?=""")


def texts_of(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    if "sluicegate " not in text and path.name != "cli.md":
        return
    if path.suffix == ".py":
        yield from strings_of(text)
        return
    if path.name == "cli.md":
        text = re.sub(r"^\| `(?=[a-z])", "| `sluicegate ", text, flags=re.M)
    for name, value in re.findall(r"^ *([A-Z][A-Z0-9]*)=(/\S+)$", text, flags=re.M):
        text = text.replace(f"${name}", value)
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "{x}", text).replace("\\\n", " ").replace("&quot;", '"')
    if path.suffix == ".md":
        text = INLINE.sub(lambda found: " ".join(found.group().split()), text)
    yield text


def strings_of(source: str) -> Iterator[str]:
    """Strings with `{x}` for each value in them, and comments."""
    parts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@cache
def operations() -> list[tuple[str, re.Pattern[str], dict[str, Any]]]:
    found = []
    for template, methods in schema()["paths"].items():
        pattern = re.sub(r"\\\{path\\\}", ".+", re.escape(template.removeprefix(API)))
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", pattern)
        found += [(method.upper(), re.compile(pattern), one) for method, one in methods.items()]
    return found


@cache
def schema() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())
    return read


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def mistakes_in(text: str) -> Iterator[str]:
    commands = below(whole_parser())
    for call in CALL.finditer(text):
        name, rest = call[2], call[3]
        said = f"sluicegate {name}{rest}".rstrip()
        if name in NOT_COMMANDS:
            continue
        if name not in commands:
            yield f"{said!r}: there is no command {name}"
            continue
        parsers, words = [commands[name]], rest.split()
        if verbs := below(commands[name]):
            word = words[0].strip(".,:;)(\"'") if words else ""
            named = word.split("|") if VERBS.fullmatch(word) else []
            yield from (f"{said!r}: {name} has no verb {verb}" for verb in named if verb not in verbs)
            parsers = [verbs[verb] for verb in named if verb in verbs] or list(verbs.values())
        known = {option for parser in parsers for option in parser._option_string_actions}
        yield from (f"{said!r}: there is no option {one}" for one in OPTION.findall(rest) if one not in known)
        if name == "api" and len(words) > 1 and words[0].isupper() and not words[1].isupper():
            yield from (f"{said!r}: {mistake}" for mistake in _mistakes_of_call(words, rest))


def _mistakes_of_call(words: list[str], rest: str) -> Iterator[str]:
    path = words[1].strip("\"'.,;:)").removeprefix(API)
    operation = next((one for method, at, one in operations() if method == words[0] and at.fullmatch(path)), None)
    if operation is None:
        yield f"there is no operation {words[0]} {path}"
        return
    headers = {one["name"] for one in operation.get("parameters", []) if one["in"] == "header" and one.get("required")}
    is_whole = not rest.rstrip(".,;:)").endswith("…")
    if is_whole and "If-Match" in headers and "--if-match" not in rest:
        yield "it needs --if-match"
    fields, required = _fields(operation)
    named = set(FIELD.findall(rest))
    yield from (f"it has no field {one}" for one in sorted(named - fields))
    if is_whole and "--input" not in rest:
        yield from (f"it needs the field {one}" for one in sorted(required - named))


def _fields(operation: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The fields that the operation takes, and those that it needs."""
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in body:
        body = schema()["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    queries = [one for one in operation.get("parameters", []) if one["in"] == "query"]
    needed = {one["name"] for one in queries if one.get("required")} | set(body.get("required", []))
    return {one["name"] for one in queries} | set(body.get("properties", {})), needed


def test_every_command_in_a_text_exists() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = [ROOT / name for name in listed if not name.startswith(SKIPPED) and Path(name).suffix in ENDINGS]
    found = [
        f"{path.relative_to(ROOT)}: {mistake}"
        for path in paths
        if path.is_file()
        for text in texts_of(path)
        for mistake in mistakes_in(text)
    ]
    assert found == []


def test_wrong_commands_are_found() -> None:
    wrong = {
        "sluicegate nodes list": "no command nodes",
        "sluicegate rollout begin sentiment/r2": "no verb begin",
        "sluicegate rollout pause|stop 3": "no verb stop",
        "sluicegate push DIR --fast": "no option --fast",
        "sluicegate api GET /nowhere": "no operation GET /nowhere",
        "sluicegate api POST /models/{x}": "no operation POST",
        "sluicegate api PATCH /models/sentiment title=x": "needs --if-match",
        "sluicegate api POST /teams slug=a colour=red": "no field colour",
        "sluicegate api POST /tokens username=ada": "needs the field password",
    }
    assert all(why in next(mistakes_in(text), "") for text, why in wrong.items())
    right = (
        "sluicegate rollout pause|resume ID --reason TEXT",
        "sluicegate --json rollout list",
        "sluicegate api GET /models/{x}/releases/r1/files/artifact/model.onnx > model.onnx",
        'sluicegate api PATCH /models/sentiment gate_policy:=@policy.json --if-match "$(date)"',
        "sluicegate api GET /api/v1/rollouts state=shifting, or the page.",
    )
    assert [mistake for text in right for mistake in mistakes_in(text)] == []
    assert next(strings_of('a = f"sluicegate {b} c" "d"  # e')) == "sluicegate {x} cd"
