"""Every path that the contributor's pages name is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["CONTRIBUTING.md", "docs/architecture.md", "README.md"]
#: In code, what begins like a folder or file of the repository; in links, whatever is no address of elsewhere.
IN_CODE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[A-Z][\w.-]*\.md|pyproject\.toml)`")
IN_LINKS = re.compile(r"\]\((?!https?:|#)([^)#]+)")
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}


def named_in(page: str) -> set[str]:
    text = (ROOT / page).read_text()
    here = (ROOT / page).parent
    code = {name for name in IN_CODE.findall(text) if "/" not in name or name.partition("/")[0] in FOLDERS}
    linked = {str((here / name).resolve().relative_to(ROOT)) for name in IN_LINKS.findall(text)}
    return code | linked


@pytest.mark.parametrize("page", PAGES)
def test_every_path_is_there(page: str) -> None:
    assert [name for name in sorted(named_in(page)) if not (ROOT / name).exists()] == []


def test_the_recipes_name_many_paths() -> None:
    assert len(named_in("CONTRIBUTING.md")) > 60
    assert "rollouts/engine/loop.py" in named_in("CONTRIBUTING.md") and "docs/glossary.md" in named_in(PAGES[1])


def test_every_function_of_the_tick_is_where_it_is_said_to_be() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## How to read a tick")[2].partition("\n## ")[0]
    engine = "\n".join(
        path.read_text()
        for folder in ("engine", "actions", "core")
        for path in (ROOT / "rollouts" / folder).rglob("*.py")
    )
    names = set(re.findall(r"`(\w+)`", section))
    assert len(names) > 15
    assert [name for name in sorted(names) if not re.search(rf"^\s*(?:def|class) {name}\b", engine, re.M)] == []


def test_a_gap_in_the_numbers_of_the_decision_records_is_explained() -> None:
    folder = ROOT / "docs" / "decisions"
    numbers = {int(path.name[:4]) for path in folder.glob("[0-9]*.md")}
    gaps = set(range(1, max(numbers) + 1)) - numbers
    explained = {int(number) for number in re.findall(r"no record (\d{4})", (folder / "README.md").read_text())}
    assert gaps == explained


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_rooms_are_told_in_their_order(page: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [rooms] = [one["layers"] for one in contracts if one["name"] == "Rooms import downwards only"]
    assert f"`{' → '.join(rooms)}`" in (ROOT / page).read_text()
    assert page == "CONTRIBUTING.md" or all(f"`{room}`" in (ROOT / page).read_text() for room in rooms)
