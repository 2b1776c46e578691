"""The glossary's code names exist: every word names at least one module, class or function of the product."""

from __future__ import annotations

import re
from pathlib import Path
from pydoc import locate

import pytest

GLOSSARY = Path(__file__).resolve().parent.parent / "docs" / "glossary.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.read_text().splitlines()
    if line.startswith("| **")
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip("*") for row in ROWS])
def test_each_word_has_a_code_name_that_exists(row: list[str]) -> None:
    _, meaning, code = row
    names = re.findall(r"`([^`]+)`", code)
    assert meaning
    assert names
    assert re.sub(r"`[^`]+`|, ", "", code) == ""
    assert [name for name in names if locate(name) is None] == []


def test_no_word_has_two_rows() -> None:
    words = [word for row in ROWS for word in row[0].strip("*").split(", ")]
    assert len(words) == len(set(words)) > 60
