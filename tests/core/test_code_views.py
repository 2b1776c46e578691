"""Text as pages show it: markup never, and what hides boxed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from web.code.hidden import MOST_NAMED, warning_of
from web.code.lines import FOLDED_AFTER, html_of


@given(st.text(max_size=200))
def test_html_says_the_text_and_holds_no_markup_of_it(text: str) -> None:
    shown = html_of(text.replace("\n", ""))
    for ours in ("</span>", '<span class="k-tab">', '<span class="k-hid"'):
        shown = shown.replace(ours, "")
    assert "<" not in shown


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
