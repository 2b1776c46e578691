"""A file that is not as it was sealed, in words and as the API shows it."""

from __future__ import annotations

import pytest

from serving.targets.core.drift import Drift

SEALED, OTHER = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("expected", "found", "words"),
    [
        (SEALED, "", "1/model.py is gone"),
        (SEALED, OTHER, "1/model.py was changed"),
        ("", OTHER, "1/model.py was put there"),
    ],
)
def test_what_happened_to_a_file_is_told_by_its_two_digests(expected: str, found: str, words: str) -> None:
    drift = Drift("1/model.py", expected, found)
    assert drift.words == words
    assert drift.as_json() == {"path": "1/model.py", "expected": expected, "found": found}
