"""Queries of policies: placeholders, the mistakes that are told before anything is asked, and selectors."""

from __future__ import annotations

import pytest

from serving.traffic.core.promql import MOST_CHARACTERS, fill, mistakes, selectors

VALUES = {
    "release": "r14",
    "digest": "sha256:" + "ab" * 32,
    "model": "sentiment",
    "environment": "production",
}


def test_placeholders_are_filled_and_the_end_of_a_pattern_stays() -> None:
    query = 'sum(x_total{release="$release",digest="${digest}",job=~"^api$",env="$environment",m="$model"})'
    filled = fill(query, VALUES)
    assert filled == (
        f'sum(x_total{{release="r14",digest="{VALUES["digest"]}",job=~"^api$",env="production",m="sentiment"}})'
    )
    assert mistakes(query, "at") == []


@pytest.mark.parametrize("value", ['r14"} or vector(1) #', "r14\\", "r 14", "a|b", "{", "$release"])
def test_a_value_cannot_end_the_quotes_that_it_stands_in(value: str) -> None:
    with pytest.raises(ValueError, match="no value"):
        fill('x{release="$release"}', {"release": value})


def test_a_placeholder_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="relese"):
        fill('x{release="$relese"}', VALUES)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "no query"),
        ("   ", "no query"),
        ('x{release="$release"}' + " " * MOST_CHARACTERS, "too long"),
        ('sum(x{release="$relese"})', "$relese is no placeholder"),
        ('sum(x{release="${release"})', "${release is not closed"),
        ('sum(x{release="${ release }"})', "is no placeholder"),
        ("sum(x{release=$release})", "outside of a label's value"),
        ('sum(orders_$release{a="b"})', "outside of a label's value"),
        ('sum(x{release="$release"}', "( has no counterpart"),
        ('sum(x{release="$release"}))', ") has no counterpart"),
        ('sum(x{release="$release")}', ") has no counterpart"),
        ('sum(x{release="$release})', '" has no counterpart'),
        ('sum(x{job="api"})', "the same number"),
        ('sum(x{model="$model",environment="$environment"})', "the same number"),
    ],
)
def test_mistakes_are_told_with_their_field_and_a_way_out(query: str, said: str) -> None:
    found = mistakes(query, "guards[2].bad_query")
    assert [said in one.message for one in found][:1] == [True], found
    assert all(one.field == "guards[2].bad_query" and one.fix for one in found)


def test_a_query_may_have_2000_characters_and_no_more() -> None:
    query = 'x{release="$release"}'.ljust(2000)
    assert mistakes(query, "at") == []
    (found,) = mistakes(query + " ", "at")
    assert "too long" in found.message and "1 to 2000 characters" in found.fix


def test_the_example_that_a_mistake_shows_is_right_itself() -> None:
    fixes = [mistakes(query, "at")[0].fix for query in ("", "up")]
    for example in (fix.rpartition("such as ")[2].removesuffix(".") for fix in fixes):
        assert mistakes(example, "at") == [] and fill(example, VALUES) == 'sum(orders_failed_total{release="r14"})'


@pytest.mark.parametrize(
    "query",
    [
        'sum(x{release="$release"}) or vector(0)',
        "sum(x{release='$release'})",
        "sum(x{release=`$release`})",
        'sum(x{release="$release", path="/a{b}(c\\"d"})',
        'sum(x{release=~"${release}"}) # it counts :-)',
        'sum(x{digest="$digest"} - x{digest="$digest", code=~"2.."})',
    ],
)
def test_brackets_in_strings_and_comments_count_for_nothing(query: str) -> None:
    assert mistakes(query, "at") == []


def test_selectors_are_found_once_each_with_their_strings_whole() -> None:
    query = """sum by (a) (x_total{b="}{",release="r1"}) - y:sum{c='d'}[5m] offset 1h
        + sum({__name__="z"}) + x_total{b="}{",release="r1"} + plain # not {this="one"}"""
    assert selectors(query) == ['x_total{b="}{",release="r1"}', "y:sum{c='d'}", '{__name__="z"}']
