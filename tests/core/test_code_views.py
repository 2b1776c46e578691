"""Text as pages show it: bounded tokens, markup never, and what hides boxed. Work is counted, not timed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.code import highlight
from web.code.hidden import MOST_NAMED, warning_of
from web.code.highlight import MOST_TOKENS, lexed, lexer_of, pieces_of
from web.code.lines import FOLDED_AFTER, html_of


@pytest.mark.parametrize("text", ["/*" * 50_000, "(" * 60_000, "{" * 60_000, "'" * 60_000, "a\n" * 60_000])
@pytest.mark.parametrize("lexer", ["python", "json", "yaml"])
def test_no_text_makes_more_tokens_than_are_allowed(text: str, lexer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    real = highlight.get_lexer_by_name(lexer)

    class Counting:
        def get_tokens_unprocessed(self, text: str) -> object:
            for token in real.get_tokens_unprocessed(text):
                taken.append(1)
                yield token

    monkeypatch.setattr(highlight, "get_lexer_by_name", lambda name: Counting())
    found = lexed(text, lexer, most_tokens=1_000)
    assert len(taken) <= 1_000
    assert [sum(length for _, length in line) for line in found] == [len(line) for line in text.split("\n")]


@given(st.text(max_size=300))
def test_pieces_cover_every_line(text: str) -> None:
    for lexer in ("python", "json", "yaml"):
        found = lexed(text, lexer)
        assert [sum(length for _, length in line) for line in found] == [len(line) for line in text.split("\n")]


def test_what_is_too_long_is_plain_and_lexers_are_ours_alone() -> None:
    assert pieces_of(["x = 1"] * 3_001, "a.py") is None
    assert pieces_of(["x" * 2_001], "a.py") is None
    assert pieces_of(["x = 1"], "a.bin") is None and lexer_of("a.PY") == "python"
    assert pieces_of(["import os"], "a.py") == ((("k-k", 6), ("", 3)),)
    assert lexer_of("config.pbtxt") == lexer_of("a.proto") == ""  # Pygments' takes time by the square for them
    assert MOST_TOKENS == 40_000


@given(st.text(max_size=200), st.integers(0, 50), st.integers(0, 50))
def test_html_says_the_text_and_holds_no_markup_of_it(text: str, begin: int, length: int) -> None:
    text = text.replace("\n", "")
    shown = html_of(
        text, [("k-s", len(text))] if text else (), [(min(begin, len(text)), min(begin + length, len(text)))]
    )
    plain = shown
    for ours in ("<mark>", "</mark>", '<span class="k-s">', "</span>", '<span class="k-tab">'):
        plain = plain.replace(ours, "")
    assert "<" not in plain.replace('<span class="k-hid"', "")


def test_marks_and_colours_are_merged_by_their_offsets() -> None:
    assert html_of("ab<cd", [("k-k", 3), ("", 2)], [(1, 4)]) == (
        '<span class="k-k">a</span><mark><span class="k-k">b&lt;</span></mark><mark>c</mark>d'
    )


def test_long_lines_are_folded_and_hidden_characters_named() -> None:
    shown = html_of("x" * 30_000)
    assert shown.startswith("x" * FOLDED_AFTER + "<details") and "29,500 more" in shown and "10,000 that only" in shown
    assert html_of("a\u202eb\x07") == (
        'a<span class="k-hid" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>b'
        '<span class="k-hid" title="a control character">U+0007</span>'
    )
    told = warning_of(["plain"] + ["\u200b"] * (MOST_NAMED + 1))
    assert told.startswith("6 hidden characters (line 2: U+200B") and "; …)" in told and "does not see" in told
    assert warning_of(["naïve", "\ttab", "日本語"]) == ""
