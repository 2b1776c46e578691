"""YAML that people write, as the JSON that the API takes: each mistake with its line and column, and the place of every field.

What JSON cannot express is a mistake: a field that is written twice, a number that is not finite, a binary. A date stays the
text that was written, as in YAML 1.2's core schema. Everything is bounded, since strangers' text is read too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml._yaml import CParser
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from registry.core.located import TextPlace

#: Characters of a text.
LONGEST_TEXT: Final = 256 << 10
#: Deeper than any field of a release, a model or a policy, free JSON in one of them included.
DEEPEST: Final = 100
#: Names and values. A contract of 1,000 inputs and 1,000 outputs has 18,000; reading and writing 20,000 takes half a second.
MOST_VALUES: Final = 20_000
#: More mistakes than anybody reads at once.
MOST_MISTAKES: Final = 100
_TAG: Final = "tag:yaml.org,2002:"
#: Longer than any number that fits; PyYAML takes time that grows with the square for base 60.
_LONGEST_NUMBER: Final = 100
_LONGEST_RESOLVED: Final = 1000
_LONGEST_PATH: Final = 1000
#: Characters of all paths together: one long name over a list would be written again for each of the list's values.
MOST_PATH_CHARS: Final = 4 << 20
#: Of a name that is quoted in a mistake.
_QUOTED: Final = 80


@dataclass(frozen=True)
class YamlMistake:
    """What is wrong, and where; `field` is the path of the value, where it is known."""

    message: str
    place: TextPlace | None = None
    field: str = ""


@dataclass(frozen=True)
class YamlText:
    """`document` is None where nothing could be read. `places`: path of a field (`serving.inputs[0].dims`) → its place."""

    document: Any
    mistakes: tuple[YamlMistake, ...] = ()
    places: Mapping[str, TextPlace] = field(default_factory=dict)


def read_text(text: str, *, is_placed: bool = True) -> YamlText:
    """The value that the text holds. A value that is wrong is None in it, and told among the mistakes. Never raises.

    Without `is_placed` there are no `places`, which a text of this program's own does not need.
    """
    if len(text) > LONGEST_TEXT:
        said = f"it has {len(text)} characters, and {LONGEST_TEXT} are the most; write less"
        return YamlText(None, (YamlMistake(said),))
    if odd := yaml.reader.Reader.NON_PRINTABLE.search(text):
        said = f"the character {odd.group()!a} cannot stand in YAML; remove it"
        line = text.count("\n", 0, odd.start()) + 1
        place = TextPlace(line, odd.start() - text.rfind("\n", 0, odd.start()))
        return YamlText(None, (YamlMistake(said, place),))
    loader = _Loader(text)
    places: dict[str, TextPlace] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return YamlText(None)
        places = _places_of(node) if is_placed else {}
        document = loader.construct_document(node)
        if not is_bounded(document, 4 * len(text) + (1 << 20)):
            said = f"it has more than {MOST_VALUES} values, or far more text, once its anchors (& and *) are followed"
            raise _Stop(f"{said}; write the values out, without anchors")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        loader.mistakes.append(YamlMistake(said, _place(mark) if mark else None))
        return YamlText(None, tuple(loader.mistakes), places)
    except (yaml.YAMLError, _Stop) as error:
        return YamlText(None, (*loader.mistakes, YamlMistake(" ".join(str(error).split()))), places)
    except RecursionError:
        return YamlText(None, (*loader.mistakes, YamlMistake("it is nested too deep; write it flatter")), places)
    finally:
        loader.dispose()
    fields = {place: path for path, place in reversed(places.items())}
    told = [
        YamlMistake(one.message, one.place, fields.get(one.place, "") if one.place else "") for one in loader.mistakes
    ]
    return YamlText(document, tuple(told), places)


def write_text(document: Mapping[str, Any]) -> str:
    """The document as YAML that reads as itself again, in its own order; as JSON, which YAML contains, where YAML cannot say it."""
    for is_plain in (True, False):  # some characters of Unicode's own line ends come out as blanks
        text: str = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=is_plain, width=100)
        if read_text(text, is_placed=False).document == document:
            return text
    return json.dumps(document, indent=2)


class _Stop(Exception):
    """Reading cannot go on."""


class _Dumper(yaml.CSafeDumper):
    """Without anchors: what is the same twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _place(mark: yaml.Mark) -> TextPlace:
    return TextPlace(mark.line + 1, mark.column + 1)


def _places_of(root: yaml.Node) -> dict[str, TextPlace]:
    """Where each field's value is written, the key for a mapping's member; bounded as the document is."""
    found: dict[str, TextPlace] = {"": _place(root.start_mark)}
    waiting: list[tuple[str, yaml.Node]] = [("", root)]
    seen: set[int] = set()  # an anchor is followed once
    room = MOST_PATH_CHARS
    while waiting and len(found) < MOST_VALUES:
        path, node = waiting.pop()
        if id(node) in seen or len(path) > _LONGEST_PATH:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    room -= len(path) + len(key.value) + 1
                    if room < 0:  # a mistake there is told at the place of what holds it
                        return found
                    inner = f"{path}.{key.value}" if path else str(key.value)
                    found[inner] = _place(value.start_mark if isinstance(value, yaml.ScalarNode) else key.start_mark)
                    waiting.append((inner, value))
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                room -= len(path) + len(str(i)) + 2
                if room < 0:
                    return found
                found[f"{path}[{i}]"] = _place(value.start_mark)
                waiting.append((f"{path}[{i}]", value))
    return found


def is_bounded(document: Any, most_chars: int = 4 * LONGEST_TEXT) -> bool:
    """Whether names, values and characters are few enough, when what anchors repeat is counted each time."""
    waiting, seen, chars = [document], 0, 0
    while waiting:
        value = waiting.pop()
        seen += 1
        chars += len(value) if isinstance(value, str) else 0
        if seen + len(waiting) > MOST_VALUES or chars > most_chars:
            return False
        if isinstance(value, dict):
            chars += sum(map(len, value))
            seen += len(value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return True


class _Loader(Composer, CParser, SafeConstructor, Resolver):
    """Reads only what JSON has, and refuses a field that is written twice: YAML would silently take the last.

    libyaml finds the events, ten times as fast as PyYAML's own scanner. The tree is PyYAML's, so that it can be bounded.
    """

    def __init__(self, text: str) -> None:
        self.mistakes: list[YamlMistake] = []
        self._depth = self._merged = self._composed = 0
        CParser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._composed += 1
        if self._composed > MOST_VALUES:  # before the tree is built, which takes a hundred times the text's memory
            raise _Stop(f"it has more than {MOST_VALUES} names and values; write fewer")
        self._depth += 1
        if self._depth > DEEPEST:
            mark: Any = self.peek_event().start_mark  # type: ignore[union-attr]  # there is one: a node begins
            said = f"this is nested deeper than {DEEPEST}; write it flatter"
            raise yaml.composer.ComposerError(None, None, said, mark)
        try:
            found: yaml.Node | None = super().compose_node(parent, index)
            return found
        finally:
            self._depth -= 1

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        """By the beginning: the patterns of numbers take time that grows with the square of a text's length."""
        found: str = super().resolve(kind, value and value[:_LONGEST_RESOLVED], implicit)
        return found

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """As PyYAML does (`<<`), but bounded: merges of merges grow without end."""
        sources = [value for key, value in node.value if key.tag == f"{_TAG}merge"]
        if not sources:
            return
        node.value = [(key, value) for key, value in node.value if key.tag != f"{_TAG}merge"]
        merged: list[Any] = []
        for source in sources:
            for one in reversed(source.value) if isinstance(source, yaml.SequenceNode) else [source]:
                if not isinstance(one, yaml.MappingNode):
                    self._note(one, "only a mapping can be merged by <<; write its fields out")
                    continue
                self.flatten_mapping(one)
                self._merged += 1 + len(one.value)
                if self._merged > MOST_VALUES:
                    raise _Stop(
                        f"it merges more than {MOST_VALUES} values by <<; write the values out, without anchors"
                    )
                merged += one.value
        node.value = merged + node.value

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _WrongValue as bad:
            self._note(node, str(bad))
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):  # such as !!int of a word
            self._note(node, f"{str(node.value)[:40]!r} is not a value of its kind; write it in quotes")
        self.recursive_objects.pop(node, None)
        return None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == f"{_TAG}str":
                if key.value in seen:
                    self._note(key, f"the field {key.value[:_QUOTED]!r} occurs twice; remove one of the two")
                seen.add(key.value)
            elif key.tag != f"{_TAG}merge":
                self._note(key, f"the field's name {str(key.value)[:40]!r} is not text; write it in quotes")
        node.value = [(key, value) for key, value in node.value if key.tag in (f"{_TAG}str", f"{_TAG}merge")]
        return super().construct_mapping(node, deep)

    def json_text(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise _WrongValue("the text has half of a character (\\ud800 to \\udfff); write the character itself")
        return text

    def json_float(self, node: yaml.ScalarNode) -> float:
        value = float(self.construct_yaml_float(node)) if len(node.value) <= _LONGEST_NUMBER else math.inf
        if not math.isfinite(value):
            said = f"{node.value[:40]!r} is not a number that JSON has"
            raise _WrongValue(f"{said}; write a finite one, or leave the field out")
        return value

    def json_int(self, node: yaml.ScalarNode) -> int:
        value = int(self.construct_yaml_int(node)) if len(node.value) <= _LONGEST_NUMBER else 1 << 64
        if abs(value) >= 1 << 63:
            raise _WrongValue("the whole number is longer than 64 bits; write a smaller one, or quote it as text")
        return value

    def not_json(self, node: yaml.Node) -> Any:
        kind = str(node.tag).replace(_TAG, "!!")
        raise _WrongValue(f"JSON has nothing like {kind}; write text, numbers, true or false, lists and mappings")

    def _note(self, node: yaml.Node, message: str) -> None:
        if len(self.mistakes) >= MOST_MISTAKES:
            raise _Stop(f"it has more than {MOST_MISTAKES} mistakes; mend these first")
        self.mistakes.append(YamlMistake(message, _place(node.start_mark)))


class _WrongValue(Exception):
    """What is wrong with one value."""


for _kind, _read in {
    "str": _Loader.json_text,
    "timestamp": _Loader.json_text,
    "float": _Loader.json_float,
    "int": _Loader.json_int,
    "binary": _Loader.not_json,
    "set": _Loader.not_json,
    "omap": _Loader.not_json,
    "pairs": _Loader.not_json,
}.items():
    _Loader.add_constructor(f"{_TAG}{_kind}", _read)  # type: ignore[type-var]  # the stubs want a class of PyYAML's own
_Loader.add_constructor(None, _Loader.not_json)  # type: ignore[type-var]
