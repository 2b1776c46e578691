"""Tokenizers from their bytes: SentencePiece models field by field, tokenizer.json in its older forms, and what is remembered."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from registry.core.formats.tokenizers import Tokenizer, facts_of, is_tokenizer_path, of_document, read
from registry.core.tokenizer import MOST_EXAMPLES, clean, difference, is_same


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def piece(token: str, score: float | None = None, kind: int | None = None, more: bytes = b"") -> bytes:
    said = message(1, token.encode())
    said += b"" if score is None else b"\x15" + struct.pack("<f", score)
    return message(1, said + (b"" if kind is None else number(3, kind)) + more)


def pieces(data: bytes) -> Tokenizer:
    found = read("tokenizer/spiece.model", data)
    assert found is not None
    return found


def document(model: dict[str, Any], **more: Any) -> Tokenizer:
    found = of_document({"model": model, **more})
    assert found is not None
    return found


def test_which_names_are_those_of_tokenizers() -> None:
    for path in ("tokenizer/tokenizer.json", "vocab.json", "a/b/vocab.txt", "tokenizer/spiece.model"):
        assert is_tokenizer_path(path)
    for path in ("tokenizer/config.json", "tokenizer/my_vocab.txt", "vocab.txt/x"):
        assert not is_tokenizer_path(path)
    assert read("tokenizer/words.json", b'{"a": 0}') is None


def test_a_line_of_vocab_txt_has_its_own_number_and_empty_lines_count() -> None:
    found = read("tokenizer/vocab.txt", b"a\n\nb\r\nc")
    assert found == Tokenizer("vocab.txt", {"a": 0, "b": 2, "c": 3})


def test_pieces_are_numbered_in_order_with_scores_and_kinds() -> None:
    found = pieces(piece("<unk>", 0.0, 2) + piece("a", -1.5) + piece("b", -0.1234567, 1) + piece("c", None, 6))
    assert found.vocabulary == {"<unk>": 0, "a": 1, "b": 2, "c": 3}
    assert found.scores == {"<unk>": 0.0, "a": -1.5, "b": -0.123457}
    assert found.special == {"<unk>": {"type": "unknown"}, "c": {"type": "byte"}}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(1, None), (2, "unknown"), (3, "control"), (4, "user_defined"), (5, "unused"), (6, "byte"), (7, None)],
)
def test_kinds_of_pieces_as_sentencepiece_numbers_them(kind: int, name: str | None) -> None:
    assert pieces(piece("t", 0.5, kind)).special == ({"t": {"type": name}} if name else {})


@pytest.mark.parametrize(("kind", "name"), [(1, "Unigram"), (2, "BPE"), (3, "Word"), (4, "Char"), (5, "unknown")])
def test_models_as_sentencepiece_numbers_them(kind: int, name: str) -> None:
    assert pieces(piece("t") + message(2, number(4, 99) + number(3, kind))).model == name
    assert pieces(piece("t")).model == pieces(piece("t") + message(2, b"")).model == "Unigram"


def test_a_normalizer_does_what_it_does_not_say_by_default() -> None:
    flags = {"add_dummy_prefix": True, "remove_extra_whitespaces": True, "escape_whitespaces": True}
    said = pieces(piece("t") + message(3, message(1, b"nmt") + message(2, bytes(300)))).steps["normalizer"]
    assert said == {"name": "nmt", "charsmap_bytes": 300, **flags}
    for field, name in enumerate(flags, 3):
        said = pieces(piece("t") + message(3, number(field, 0))).steps["normalizer"]
        assert said == {"name": "", "charsmap_bytes": 0, **flags, name: False}
    assert pieces(piece("t")).steps == {"normalizer": {}}


def test_fields_of_other_kinds_are_passed_over() -> None:
    """Numbers of 32 and 64 bits, trainer settings and fields of a later version stand between pieces."""
    between = b"\x51" + bytes(8) + b"\x55" + bytes(4) + number(200, 2**40) + number(1, 7) + number(2, 7) + number(3, 7)
    found = pieces(piece("a", 1.0) + between + piece("b", 2.0, more=number(300, 1) + b"\x21" + bytes(8)))
    assert (found.vocabulary, found.scores, found.model) == ({"a": 0, "b": 1}, {"a": 1.0, "b": 2.0}, "Unigram")
    long = piece("x" * 300, 1.0)  # its length takes two bytes
    assert list(pieces(long + piece("b")).vocabulary) == ["x" * 300, "b"]


@pytest.mark.parametrize(
    "tail",
    [
        b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x12\x02a", b"\x51" + bytes(7), b"\x55" + bytes(3), b"\x18", b"\x18\x80",
        b"\x18" + b"\x80" * 10 + b"\x01", b"\x12",
    ],
)  # fmt: skip
def test_a_model_that_is_damaged_after_its_pieces_is_none(tail: bytes) -> None:
    assert read("tokenizer/spiece.model", piece("a") + tail) is None
    assert read("tokenizer/spiece.model", piece("a")) is not None


def test_the_longest_number_ends_after_ten_bytes() -> None:
    assert pieces(piece("a") + b"\x20" + b"\xff" * 9 + b"\x01").vocabulary == {"a": 0}
    exact = piece("a") + message(9, b"") + b"\x51" + bytes(8)  # the last field ends with the file
    assert pieces(exact).vocabulary == {"a": 0}


def test_what_is_no_text_where_a_text_belongs_is_empty() -> None:
    assert pieces(message(1, number(1, 5))).vocabulary == {"": 0}
    assert pieces(message(1, b"\x15" + struct.pack("<f", 1.0))).scores == {"": 1.0}


# --- tokenizer.json and vocab.json


def test_a_table_of_tokens_alone_is_a_vocabulary() -> None:
    assert of_document({"a": 0, "b": 1}) == Tokenizer("vocab.json", {"a": 0, "b": 1})
    for other in ({}, {"a": 0, "b": True}, {"a": 0, "b": "1"}, [], "x", None, {"model": "x"}, {"model": {}}):
        assert of_document(other) is None


def test_ids_that_are_no_numbers_are_left_out() -> None:
    assert document({"vocab": {"a": 0, "b": True, "c": "2", "d": 3.0, "e": 4}}).vocabulary == {"a": 0, "e": 4}
    assert of_document({"model": {"vocab": {"a": "0"}}}) is None


def test_a_unigram_lists_its_tokens_with_their_scores() -> None:
    found = document({"vocab": [["<unk>", 0.0], ["a", -1.5], ["odd"], ["b", -2.5]]})
    assert found.vocabulary == {"<unk>": 0, "a": 1, "": 2, "b": 3}
    assert found.scores == {"<unk>": 0.0, "a": -1.5, "": 0, "b": -2.5} and found.model == "Unigram"
    assert document({"vocab": [["a", 1, 2], "ab"]}).vocabulary == {"": 1}


def test_added_tokens_are_in_the_vocabulary_and_keep_their_flags() -> None:
    added = [
        {"id": 7, "content": "[X]", "special": True, "lstrip": False}, {"id": "8", "content": "[Y]"}, {"id": 9, "content": 9},
        {"id": True, "content": "[Z]"}, "text",
    ]  # fmt: skip
    found = document({"vocab": {"a": 0}}, added_tokens=added)
    assert found.vocabulary == {"a": 0, "[X]": 7} and found.special == {"[X]": {"special": True, "lstrip": False}}
    assert document({"vocab": {"a": 0}}, added_tokens={"id": 7}).special == {}


def test_the_type_that_older_files_leave_out() -> None:
    assert document({"vocab": {"a": 0}, "merges": []}).model == "BPE"
    assert document({"vocab": {"a": 0}}).model == "WordPiece"
    assert document({"vocab": {"a": 0}, "type": "W" * 51}).model == "W" * 50
    assert document({"vocab": {"a": 0}, "type": 3}).model == "WordPiece"


def test_merges_settings_and_steps() -> None:
    found = document(
        {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b", ["c", "d"]], "dropout": None, "fuse_unk": True},
        normalizer={"type": "NFC"}, version="1.0",
    )  # fmt: skip
    assert found.merges == ("a b", "c d") and found.settings == {"dropout": None, "fuse_unk": True}
    assert (
        found.steps["normalizer"] == {"type": "NFC"} and found.steps["padding"] is None and "version" not in found.steps
    )
    assert document({"vocab": {"a": 0}, "merges": "a b"}).merges == ()


def test_what_is_remembered_of_a_tokenizer() -> None:
    added = [{"id": 9, "content": "[X]"}]
    found = document({"vocab": {"a": 0, "b": 5}, "merges": ["a b"]}, added_tokens=added)
    assert facts_of(found) == {"model": "BPE", "vocabulary": 3, "added_tokens": 1, "merges": 1, "largest_id": 9}
    assert facts_of(Tokenizer("m", {"a": 2**53}))["largest_id"] == 2**53 - 1


# --- the difference of two


def test_examples_are_twenty_at_most_the_lowest_ids_first_and_counts_are_whole() -> None:
    many = {f"t{i:02}": 100 - i for i in range(MOST_EXAMPLES + 1)}
    empty, full = Tokenizer("m", {"z": 0}), Tokenizer("m", {"z": 0, **many})
    other = Tokenizer("m", {"z": 0, **{token: i + 1 for token, i in many.items()}})
    assert MOST_EXAMPLES == 20
    for found, kind, ids in (
        (difference(empty, full), "added", "new"),
        (difference(full, empty), "removed", "old"),
        (difference(full, other), "changed", "old"),
    ):
        counts = {"old": 1, "new": 22} if kind == "added" else {"old": 22, "new": 1 if kind == "removed" else 22}
        assert found["vocabulary"] == {"added": 0, "removed": 0, "changed": 0, **counts, kind: 21}
        assert [one[ids]["id"] for one in found["tokens"][kind]] == list(range(80, 100)) and not is_same(found)


def test_a_token_is_changed_by_its_id_its_score_or_its_flags() -> None:
    base = Tokenizer("m", {"a": 0}, scores={"a": -1.0}, special={"a": {"lstrip": False}})
    for other in (
        Tokenizer("m", {"a": 1}, scores=base.scores, special=base.special),
        Tokenizer("m", {"a": 0}, scores={"a": -2.0}, special=base.special),
        Tokenizer("m", {"a": 0}, scores=base.scores, special={"a": {"lstrip": True}}),
    ):
        found = difference(base, other)
        assert found["vocabulary"]["changed"] == 1 and not is_same(found)
    assert is_same(difference(base, base)) and difference(base, base)["fields"] == []


def test_merges_tell_how_many_are_only_here_or_that_the_order_is_another() -> None:
    old, new = Tokenizer("m", {}, merges=("a", "b", "c")), Tokenizer("m", {}, merges=("a", "c", "d", "e"))
    (merges,) = difference(old, new)["fields"]
    assert merges == {"field": "merges", "old": "3 merges, 1 of them only here", "new": "4 merges, 2 of them only here"}
    (merges,) = difference(Tokenizer("m", {}, merges=("a", "b")), Tokenizer("m", {}, merges=("b", "a")))["fields"]
    assert merges == {"field": "merges", "old": "2 in this order", "new": "2 in this order"}


def test_settings_of_one_side_alone_are_told() -> None:
    old, new = Tokenizer("m", {}, settings={"a": 1, "b": 2}), Tokenizer("m", {}, settings={"b": 2, "c": 3})
    assert difference(old, new)["fields"] == [
        {"field": "model.a", "old": 1, "new": None},
        {"field": "model.c", "old": None, "new": 3},
    ]


def test_tokens_are_shown_as_a_terminal_can_show_them() -> None:
    assert (clean("good"), clean("é"), clean("a\n"), clean("\u200b")) == ("good", "é", "a\\n", "\\u200b")
    assert json.dumps(clean("\ud800")) == '"\\\\ud800"'
