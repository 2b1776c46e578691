"""What a reviewer of code does not see is told: bidirectional controls, invisible characters, odd encodings."""

from __future__ import annotations

import io

import pytest

from registry.core.formats import inspect, reader_of
from registry.core.formats.source import MOST_READ, MOST_TOLD, hidden_in

PLAIN = b"# -*- coding: utf-8 -*-\nclass TritonPythonModel:\n    name = 'caf\xc3\xa9'\n"


def hidden(data: bytes) -> list[str]:
    found = inspect("artifact/model.py", io.BytesIO(data), len(data))
    assert found.problems == ()
    return list(found.facts.get("hidden", []))


@pytest.mark.parametrize(
    "data", [b"", PLAIN, b"\xef\xbb\xbf" + PLAIN, b"# coding: ascii\n", b"#!/x\n# vim: set fileencoding=utf8 :\n"]
)
def test_plain_source_has_nothing_to_tell(data: bytes) -> None:
    assert hidden(data) == []


@pytest.mark.parametrize("point", [0x202E, 0x2066, 0x2069, 0x202A, 0x200F, 0x061C, 0x200B, 0x2060, 0xFEFF])
def test_a_hidden_character_is_told_with_its_line(point: int) -> None:
    assert hidden(f"a = 1\nb = '{chr(point)}{chr(point)}'\n".encode()) == [f"line 2: U+{point:04X}"]


@pytest.mark.parametrize(
    "data", [b"# coding: utf-7\n", b"#!/x\n# -*- coding: latin-1 -*-\n", b"# coding=unicode_escape"]
)
def test_another_encoding_is_told(data: bytes) -> None:
    assert "declared encoding" in hidden(data)[0]


def test_a_third_line_declares_nothing() -> None:
    assert hidden(b"a\nb\n# coding: utf-7\n") == []


def test_what_is_told_is_bounded() -> None:
    data = "\u202e\n".encode() * 1000
    assert len(hidden_in(data)) == MOST_TOLD and hidden_in(data)[-1] == "and more"
    assert "nothing beyond" in hidden(b"#" * (MOST_READ + 1))[0]


def test_source_that_was_read_before_is_read_again() -> None:
    assert reader_of("python") > reader_of("onnx")
