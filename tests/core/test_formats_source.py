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
    "data",
    [
        b"# coding: latin-1\n",
        b"#!/x\n# -*- coding: latin-1 -*-\n",
        b"#coding=latin-1",
        b"\r# coding: latin-1\rx = 1\r",
        b"\r\n# coding: latin-1\r\n",
        b"#" + b" " * 5000 + b"coding: latin-1\n",
        b"#" * 5000 + b"\n\f# coding: latin-1\n",
    ],
)
def test_another_encoding_is_told_wherever_python_reads_it(data: bytes) -> None:
    assert hidden(data) == ["declared encoding latin-1"]
    value = b"" if data.endswith((b"\n", b"\r")) else b"\n"
    names: dict[str, str] = {}
    exec(compile(data + value + b"said = '\xe9'\n", "model.py", "exec"), names)
    assert names["said"] == "é"  # as UTF-8 it would be no source at all


@pytest.mark.parametrize("name", ["utf-7", "unicode_escape", "cp1252"])
def test_another_encoding_is_told_by_its_name(name: str) -> None:
    for line in (f"# coding: {name}\n", f"# coding={name}", f"#!/x\n# -*- coding: {name} -*-\n"):
        assert hidden(line.encode()) == [f"declared encoding {name}"]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_third_line_declares_nothing(end: bytes) -> None:
    assert hidden(b"a" + end + b"b" + end + b"# coding: utf-7" + end) == []
    assert hidden(b"#a" + end + b"#b" + end + b"# coding: latin-1" + end) == []


def test_what_is_told_is_bounded() -> None:
    assert (MOST_READ, MOST_TOLD) == (4 * 1024 * 1024, 20)
    data = "\u202e\n".encode() * 1000
    assert len(hidden_in(data)) == MOST_TOLD and hidden_in(data)[-1] == "and more"
    assert hidden_in("\u202e\n".encode() * (MOST_TOLD - 1)) == [f"line {n}: U+202E" for n in range(1, MOST_TOLD)]
    assert hidden_in("\u202e\n".encode() * MOST_TOLD)[-1] == "and more"
    assert "nothing beyond" in hidden(b"#" * (MOST_READ + 1))[0]
    assert hidden(b"#" * MOST_READ) == []


def test_source_that_was_read_before_is_read_again() -> None:
    assert reader_of("python") > reader_of("text")
