"""Every room keeps its rate of avoidable constructions or lowers it (docs/style.md)."""

from __future__ import annotations

import pytest

from tests.support.house import prose


def test_no_rate_rises() -> None:
    limits = prose.stored()
    risen = {name: round(rate) for name, rate in prose.rates().items() if rate > limits.get(name, 0)}
    assert risen == {}, "rewrite by docs/style.md; `python -m tests.support.house.prose` stores lower rates"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Of its term; None while another engine leads.", 0),
        ("An event that wakes nobody is a resolve.", 1),
        ("The log tells what it found, where no node has room.", 3),
        ("Events that page a person.", 0),
        ("So somebody reads what the log\nsays.", 3),
    ],
)
def test_the_counter_counts(text: str, count: int) -> None:
    assert len(prose.found_in(text)) == count


def test_text_in_code_marks_and_code_do_not_count() -> None:
    source = 'def f() -> str:\n    """Returns `whatever`."""\n    return "somebody"  # as the caller says\n'
    assert prose.text_of("a.py", source).split() == ["Returns", ".", "as", "the", "caller", "says"]
    assert prose.text_of("a.html", "<p title='somebody'>No {{ one.that }} model</p>").split() == ["No", "model"]


def test_the_command_refuses_to_raise_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "rates", lambda: {"web": 81.0})
    monkeypatch.setattr(prose, "stored", lambda: {"web": 80})
    assert prose.main() == 1
