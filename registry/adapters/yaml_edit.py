"""One section of a release.yaml written anew, and nothing else of the text touched: a person's comments and order stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from registry.adapters.json_yaml import read_text, write_text


def with_section(text: str, name: str, content: Any) -> str:
    """The text with this as the section of its envelope, such as `engine`. Comments inside that section go with it.

    Raises ValueError where the text or its envelope is no mapping, or is written in a way in which the section cannot be replaced.
    """
    before = read_text(text)
    if before.mistakes or not isinstance(before.document, dict):
        raise ValueError("it is not a mapping of fields")
    envelope = {**fields_of(before.document, "envelope"), name: content}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # it was read as one
    after = _edited(text, root, name, envelope)
    read = read_text(after)
    if read.mistakes or read.document != {**before.document, "envelope": envelope}:
        raise ValueError(f"envelope.{name} cannot be replaced in it without changing something else")
    return after


def fields_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What the member holds, nothing where it is left out or empty. Raises ValueError where it is no mapping."""
    found = document.get(name)
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"its `{name}` is not a mapping of fields")
    return found or {}


def _edited(text: str, root: yaml.MappingNode, name: str, envelope: Mapping[str, Any]) -> str:
    outer = _member(root, "envelope")
    if outer is None:
        return f"{text.rstrip()}\n{write_text({'envelope': envelope})}"
    key, value = outer
    if not isinstance(value, yaml.MappingNode) or value.flow_style or not value.value:
        return _replaced(text, key, value, "envelope", envelope)
    inner = _member(value, name)
    if inner is not None:
        return _replaced(text, *inner, name, envelope[name])
    end, column = text.find("\n", _end(text, value)), value.value[0][0].start_mark.column
    end = len(text) if end < 0 else end  # behind a comment on the last line
    return f"{text[:end]}\n{' ' * column}{_block(name, envelope[name], column)}{text[end:]}"


def _member(node: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next(((key, value) for key, value in node.value if key.value == name), None)


def _replaced(text: str, key: yaml.Node, value: yaml.Node, name: str, content: Any) -> str:
    start = key.start_mark
    return text[: start.index] + _block(name, content, start.column) + text[max(start.index, _end(text, value)) :]


def _block(name: str, content: Any, column: int) -> str:
    """The member as lines, all but the first indented, without a last line end."""
    return write_text({name: content}).rstrip("\n").replace("\n", "\n" + " " * column)


def _end(text: str, node: yaml.Node) -> int:
    """Where the node's own last character is followed by others: its end mark is only at the next token, behind comments."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(node, yaml.MappingNode) else last
    return len(text[: node.end_mark.index].rstrip())
