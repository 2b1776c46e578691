"""A release.yaml whose envelope.engine is written anew: nothing else of the text changes."""

from __future__ import annotations

from typing import Any

import pytest

from registry.adapters.json_yaml import read_text
from registry.adapters.yaml_edit import with_section

ENGINE: dict[str, Any] = {
    "type": "trt-plan",
    "builder_version": "10.3.0",
    "built_on": {"compute_capability": "8.9"},
    "optimization_profiles": [{"input": "x", "min": [1, 8], "opt": [4, 8], "max": [8, 8]}],
}
HEAD = """# what this is
model: sentiment  # the slug
"""
TAIL = """
# whose it is
provenance:
  notes: |
    two
    lines
"""


@pytest.mark.parametrize(
    "envelope",
    [
        "",
        "envelope:\n",
        "envelope: {}\n",
        "envelope: {limits: {max_batch_size: 8}}\n",
        "envelope:\n  limits:\n    max_batch_size: 8  # as in serving\n",
        "envelope:\n  engine:\n    type: trt-plan\n    builder_version: '10.0'\n  limits:\n    max_batch_size: 8\n",
        "envelope:\n    limits:\n        max_batch_size: 8\n    engine:\n        type: trt-plan\n",
        "envelope:\n  engine: {type: trt-plan}  # old\n  limits: {max_batch_size: 8}\n",
        "envelope:\n  engine:\n  limits: {max_batch_size: 8}\n",
        "envelope:\n  engine:\n    optimization_profiles:\n    - input: x\n      min: [1]\n      opt: [1]\n      max: [1]\n",
    ],
)
@pytest.mark.parametrize("tail", ["", TAIL])
def test_the_section_is_new_and_the_rest_is_as_it_was(envelope: str, tail: str) -> None:
    text = HEAD + envelope + tail
    before = read_text(text)
    assert before.mistakes == ()
    after = with_section(text, "engine", ENGINE)
    expected = {**before.document, "envelope": {**(before.document.get("envelope") or {}), "engine": ENGINE}}
    assert read_text(after).document == expected
    assert after.startswith(HEAD) and (not tail or tail.strip() in after)
    assert with_section(after, "engine", ENGINE) == after, "and written once more it stays"


def test_comments_beside_the_section_stay() -> None:
    text = "envelope:\n  # ours\n  limits:\n    max_batch_size: 8  # as in serving\n\n# the end\n"
    after = with_section(text, "engine", ENGINE)
    assert all(comment in after for comment in ("# ours", "# as in serving", "# the end"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2]\n", "not a mapping"),
        ("a: 1\na: 2\n", "not a mapping"),
        ("envelope: [1]\n", "its `envelope` is not a mapping"),
        ("envelope: linux\n", "its `envelope` is not a mapping"),
        ("{model: x}\n", "without changing something else"),
        ("envelope: &e\n  engine: {type: trt-plan}\nprovenance: *e\n", "without changing something else"),
    ],
)
def test_what_cannot_be_replaced_alone_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        with_section(text, "engine", ENGINE)
