"""YAML files that people write, as the JSON that the API takes: anything that JSON cannot express is refused with its line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import yaml

from sluicegate.cli.errors import CommandError, refuse

#: Deeper than any field of a release, a model or a policy, free JSON in one of them included.
DEEPEST: Final = 100
#: More values than any of them has; anchors that repeat one another can make a short file as long as one likes.
MOST_VALUES: Final = 100_000
_TAG: Final = "tag:yaml.org,2002:"


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's mapping. Raises CommandError (exit 3) naming the line of a mistake and its fix.

    A date stays the text that was written, as in YAML 1.2's core schema: JSON has none.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_JsonLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise _mistake(path, error) from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise refuse(f"{path} cannot be read: {said}.", "Mend it, then repeat the command.") from error
    if not isinstance(document, dict):
        raise refuse(f"{path} must be a mapping of fields.", "Compare it with examples/sentiment.")
    if not _is_bounded(document):
        raise refuse(
            f"{path} has more than {MOST_VALUES} values once its anchors (& and *) are followed.",
            "Write the values out, without anchors.",
        )
    return document


def _mistake(path: Path, error: yaml.MarkedYAMLError) -> CommandError:
    mark = error.problem_mark or error.context_mark
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    said = " ".join(part for part in (error.context, error.problem) if part)
    return refuse(f"{path}{where}: {said}.", "Mend it, then repeat the command.")


def _is_bounded(document: Any) -> bool:
    waiting, seen = [document], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen + len(waiting) > MOST_VALUES:
            return False
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return True


class _JsonLoader(yaml.SafeLoader):
    """Reads only what JSON has, and refuses a field that is written twice: YAML would silently take the last."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(
                None, None, f"this is nested deeper than {DEEPEST}; write it flatter", mark
            )
        try:
            found: yaml.Node | None = super().compose_node(parent, index)
            return found
        finally:
            self.depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:  # such as !!int of a word
            raise _no(node, f"{str(node.value)[:40]!r} is not a value of its kind; write it in quotes") from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == f"{_TAG}str":
                if key.value in seen:
                    raise _no(key, f"the field {key.value!r} occurs twice; remove one of the two")
                seen.add(key.value)
            elif key.tag != f"{_TAG}merge":
                raise _no(key, f"the field's name {str(key.value)[:40]!r} is not text; write it in quotes")
        return super().construct_mapping(node, deep)

    def json_text(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        if not _is_unicode(text):
            raise _no(node, "the text has half of a character (\\ud800 to \\udfff); write the character itself")
        return text

    def json_float(self, node: yaml.ScalarNode) -> float:
        value = float(self.construct_yaml_float(node))
        if not math.isfinite(value):
            raise _no(node, f"{node.value!r} is not a number that JSON has; write a finite one, or leave the field out")
        return value

    def json_int(self, node: yaml.ScalarNode) -> int:
        value = int(self.construct_yaml_int(node))
        if abs(value) >= 1 << 63:
            raise _no(node, "the whole number is longer than 64 bits; write a smaller one, or quote it as text")
        return value

    def not_json(self, node: yaml.Node) -> Any:
        kind = str(node.tag).replace(_TAG, "!!")
        raise _no(node, f"JSON has nothing like {kind}; write text, numbers, true or false, lists and mappings")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


for _kind, _read in {
    "str": _JsonLoader.json_text,
    "timestamp": _JsonLoader.json_text,
    "float": _JsonLoader.json_float,
    "int": _JsonLoader.json_int,
    "binary": _JsonLoader.not_json,
    "set": _JsonLoader.not_json,
    "omap": _JsonLoader.not_json,
    "pairs": _JsonLoader.not_json,
}.items():
    _JsonLoader.add_constructor(f"{_TAG}{_kind}", _read)
_JsonLoader.add_constructor(None, _JsonLoader.not_json)
