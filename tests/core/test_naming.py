"""What `python -m tests.support.house.architecture` counts about names, tried on names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.house.naming import ROOT, duplicate_classes, retired_in, retired_words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Tender", ["tender"]),
        ("_letters", ["letter"]),
        ("let_go_of_it", ["let_go"]),
        ("LetGo", ["let_go"]),
        ("doorstep", []),
        ("bookkeeping", []),
        ("is_wanted", []),
    ],
)
def test_retired_words_are_found_as_words(name: str, words: list[str]) -> None:
    assert retired_in(name) == words


def test_modules_classes_and_functions_are_looked_at() -> None:
    path = ROOT / "serving" / "keeper.py"
    found = retired_words({path: ast.parse("class Door:\n    def _told(self): ...\n\nwanted = 1\n")})
    assert [one.split(" (")[0] for one in found] == [
        "serving/keeper.py:0 keeper",
        "serving/keeper.py:1 Door",
        "serving/keeper.py:2 _told",
    ]


def test_two_classes_of_one_name_are_found_in_one_app_only() -> None:
    trees = {ROOT / name: ast.parse("class Part: ...") for name in ("serving/a.py", "serving/b.py", "rollouts/a.py")}
    assert duplicate_classes(trees) == ["Part: serving/a.py:1, serving/b.py:1"]
    assert duplicate_classes({Path(ROOT / "serving/a.py"): ast.parse("class Meta: ...\nclass Meta: ...")}) == []
