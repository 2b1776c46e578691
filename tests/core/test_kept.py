"""What a process keeps of its last answers."""

from __future__ import annotations

import pytest

from web.kept import Kept, forget_all


def test_a_value_is_kept_until_what_it_rests_on_changes() -> None:
    kept: Kept[list[int]] = Kept(2)
    first = kept.of("a", 1, lambda: [1])
    assert kept.of("a", 1, lambda: [2]) is first
    assert kept.of("a", 2, lambda: [3]) == [3]
    assert kept.of("a", 1, lambda: [4]) == [4]  # the last one alone


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    kept: Kept[str] = Kept(2)
    for key in ("a", "b", "a", "c"):
        kept.of(key, 0, lambda key=key: f"{key}, first")
    assert [kept.of(key, 0, lambda: "anew") for key in ("a", "c", "b")] == ["a, first", "c, first", "anew"]


def test_what_raises_is_not_kept_and_all_can_be_forgotten() -> None:
    kept: Kept[int] = Kept(2)
    with pytest.raises(ZeroDivisionError):
        kept.of("a", 0, lambda: 1 // 0)
    assert kept.of("a", 0, lambda: 5) == 5
    forget_all()
    assert kept.of("a", 0, lambda: 6) == 6
