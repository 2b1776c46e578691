"""Names and other texts with a pattern: each refusal states the rule."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

import registry.core
import rollouts.core
import validators.core
from accounts.core.slugs import slug_near
from registry.core.schema import INVALID, LONGEST_NAME, Field, Problem, TensorName, Text
from registry.core.spec import SLUG


def patterns() -> list[Text]:
    """Every text of a form in the schemas of release.yaml and of the policies."""
    found: dict[int, Any] = {}
    for package in (registry.core, rollouts.core, validators.core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                collect(value, found)
    return [one for one in found.values() if isinstance(one, Text) and one.pattern]


def collect(value: Any, found: dict[int, Any]) -> None:
    """Adds the kinds of field in the value to `found`, by identity."""
    is_kind = hasattr(value, "read") or isinstance(value, Field)
    if isinstance(value, type) or not (is_kind or isinstance(value, dict)) or id(value) in found:
        return
    found[id(value)] = value
    for inner in value.values() if isinstance(value, dict) else getattr(value, "__dict__", {}).values():
        collect(inner, found)


def refusal(kind: Any, value: object) -> str:
    problems: list[Problem] = []
    assert kind.read(value, "x", problems) is INVALID
    return f"{problems[0].message} {problems[0].fix}"


def test_each_refusal_of_a_pattern_states_the_rule_and_an_example() -> None:
    found = patterns()
    assert len(found) >= 15
    for kind in found:
        for value in ("?\u00e9 ?", "", 5):
            said = refusal(kind, value)
            assert kind.rule in said and kind.like and kind.like in said and kind.says, said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ResNet50", "resnet50"),
        ("resnet50.v1", "resnet50-v1"),
        ("org/model", "org-model"),
        ("Modèle n° 3", "modele-n-3"),
        ("_private", "private"),
        ("日本", ""),
        ("a" * 70 + "!", "a" * 60),
    ],
)
def test_a_models_name_that_is_refused_comes_with_one_that_is_taken(typed: str, meant: str) -> None:
    said = refusal(SLUG, typed)
    assert "small letters, digits, - and _, at most 60" in said
    assert (f"Was {meant} meant?" in said) if meant else ("meant" not in said)
    assert slug_near(typed, 60) in (meant, meant.replace("_", "-"))
    assert not meant or SLUG.read(meant, "x", []) == meant


@pytest.mark.parametrize("name", ["sepal length (cm)", "年齢", "/in/x", 'a "b"', "a:b", "a\\b", "x" * LONGEST_NAME])
def test_any_printable_text_names_a_tensor(name: str) -> None:
    assert TensorName().read(name, "x", []) == name


@pytest.mark.parametrize(
    "name", ["", " x", "x ", "a\tb", "a\nb", "a\x00", "a\x7f", "a\u200bb", "\ud800", "x" * 257, 7, None]
)
def test_what_names_no_tensor_is_refused_with_the_rule(name: object) -> None:
    assert "1 to 256 printable characters, and no space at either end" in refusal(TensorName(), name)
