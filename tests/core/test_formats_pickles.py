"""Pickles, safetensors and JSON at their edges: what counts as one, and how much of it is believed."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections import OrderedDict
from random import Random
from typing import Any

import pytest

from registry.core.file_rules import CODE_ENDINGS, DATA_ENDINGS
from registry.core.formats import KINDS, disguise_of, findings, inspect, jsons, kind_of, reader_of, safetensors
from registry.core.formats.findings import Malformed, elements_of, shown
from registry.core.formats.pickles import HIDDEN, MOST_IMPORTS, imports, is_pickle

# --- what is a pickle


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_stream_that_says_its_protocol_is_one_when_it_ends_or_goes_on(protocol: int) -> None:
    assert is_pickle(pickle.dumps(1, protocol)) and is_pickle(pickle.dumps([*range(99)], protocol))
    assert is_pickle(bytes([0x80, protocol]) + b"NNNNNNN")  # eight opcodes are enough, though it does not end
    assert not is_pickle(bytes([0x80, protocol]) + b"NNNNNN")
    assert not is_pickle(bytes([0x80, protocol])) and not is_pickle(b"\x80")


@pytest.mark.parametrize("protocol", [0, 1, 6, 255])
def test_other_bytes_after_0x80_say_nothing(protocol: int) -> None:
    assert not is_pickle(bytes([0x80, protocol]) + b"N.")


def test_an_old_pickle_is_told_by_importing_and_then_running() -> None:
    assert is_pickle(b"cos\nsystem\n(S'id'\ntR.") and is_pickle(b"(S'id'\nios\nsystem\n.")
    assert is_pickle(b"cos\nx\n)\x81.") and is_pickle(b"cos\nx\n}b.") and is_pickle(b"(cos\nx\no.")
    assert not is_pickle(b"cos\nsystem\n.") and not is_pickle(b"(lp0\n.") and not is_pickle(b"")
    assert not is_pickle(b")R.") and not is_pickle(b"NNR.")  # it runs what it did not import
    assert not is_pickle(b"cos\nsystem\nR.")  # and this has nothing to run it on


def test_a_name_from_the_stack_needs_a_text_and_a_registered_code_is_no_name() -> None:
    assert is_pickle(b"\x8c\x02os\x8c\x06system\x93)R.") and not is_pickle(b"NN\x93)R.")
    assert not is_pickle(b"\x82\x01)R.") and is_pickle(b"\x80\x02\x82\x01)R.")


@pytest.mark.parametrize("spread", [2, 3, 8, 20, 128])
def test_quantized_weights_are_no_pickle(spread: int) -> None:
    """Numbers of uint8 with the zero point 128, as quantizers write them, spread around it in steps."""
    random = Random(spread)
    for _ in range(300):
        data = bytes(min(max(round(random.gauss(128, spread)), 0), 255) for _ in range(2048))
        assert disguise_of(data) == "" and inspect("artifact/w.bin", io.BytesIO(data), 2048).facts["is_plain"]


def test_what_an_opcode_takes_must_be_on_the_stack() -> None:
    ends = b"cos\nx\n)R."
    for good in (b"N0", b"NN00", b"(0", b"(NN1", b"((N11", b"(N0N01", b"N20" + b"0", b"(Nt0", b"(NNd0"):
        assert is_pickle(good + ends), good
    for bad in (b"0", b"N00", b"1", b"N1", b"(1" + b"1", b"2", b"t", b"Nt", b"s", b"NNs", b"d"):
        assert not is_pickle(bad + ends), bad


# --- what it would import


def pushed(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def names(body: bytes, **more: Any) -> list[str]:
    return imports(b"\x80\x04" + body + b".", **more)


def test_names_are_told_where_their_two_texts_are_known() -> None:
    a, b, c = pushed("a"), pushed("b"), pushed("c")
    assert names(a + b + b"\x93") == ["a.b"] == names(c + a + b + b"\x93")
    assert names(a + b"\x94" + b + b"\x94" + b"0" + b"0" + b"h\x00h\x01\x93") == ["a.b"]
    assert names(a + b"q\x07" + b + b"r\x08\0\0\0" + b"00" + b"h\x07j\x08\0\0\0\x93") == ["a.b"]
    assert names(b"Va\np5\nVb\np6\n00g5\ng6\n\x93") == ["a.b"]
    assert names(b"X\x01\0\0\0aX\x01\0\0\0b\x93") == ["a.b"] and names(b"cos\nsystem\n") == ["os.system"]
    assert names(b"(ios\nsystem\n") == ["os.system"]


@pytest.mark.parametrize(
    "body",
    [
        b"\x93", pushed("a") + b"\x93", pushed("a") + b"N" + b"\x93", pushed("a") + b"N" + pushed("b") + b"\x93",
        b"h\x05" + pushed("b") + b"\x93", pushed("a") + b"h\x05\x93", b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\0\0\0",
        pushed("a") + pushed("b") + b"0\x93",
    ],
)  # fmt: skip
def test_names_that_are_made_or_not_known_are_hidden(body: bytes) -> None:
    assert names(body) == [HIDDEN]


def test_framing_between_two_texts_hides_nothing() -> None:
    assert names(pushed("a") + b"\x95" + bytes(8) + pushed("b") + b"\x93") == ["a.b"]


def test_names_are_told_once_in_order_and_cut() -> None:
    assert names(b"cb\nx\n0ca\nx\n0cb\nx\n") == ["b.x", "a.x"]
    assert names(b"cm\n" + b"n" * 300 + b"\n") == ["m." + "n" * 198]


def test_two_hundred_names_are_told() -> None:
    def many(count: int) -> list[str]:
        return names(b"".join(b"cm\nn%d\n0" % i for i in range(count)))

    assert MOST_IMPORTS == 200
    assert many(200) == [f"m.n{i}" for i in range(200)]
    assert many(201) == [*(f"m.n{i}" for i in range(200)), HIDDEN]


def test_several_streams_may_follow_one_another() -> None:
    one, two = pickle.dumps(OrderedDict(), 2), b"\x80\x02cos\nsystem\n."
    assert imports(one + two) == ["collections.OrderedDict", "os.system"]
    assert imports(one + b"storages") == ["collections.OrderedDict"] == imports(one)
    assert imports(one + two[:-1]) == ["collections.OrderedDict", "os.system", HIDDEN]
    assert imports(one, is_whole=False) == ["collections.OrderedDict", HIDDEN]
    assert imports(b"") == imports(b"no pickle \xff") == [HIDDEN]
    assert imports(b"N.") == [] == imports(b"N.N.")


# --- what a name promises


def test_every_allowed_ending_promises_a_kind() -> None:
    kinds = {ending: kind_of(f"artifact/x{ending}") for ending in DATA_ENDINGS | CODE_ENDINGS}
    assert set(kinds.values()) == KINDS and kind_of("artifact/x") == kind_of("artifact/x.unknown") == "raw"
    assert (kinds[".pt"], kinds[".bin"], kinds[".yml"], kinds[".csv"]) == ("torchscript", "pickle", "yaml", "text")
    assert reader_of("pickle") >= 2  # what was remembered by an older reader is read again


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\x7fELF", "program"), (b"PK\x03\x04", "zip"), (b"PK\x05\x06", "zip"), (b"\x1f\x8b\x08", "gzip"), (b"\xfd7zXZ\x00", "xz"),
        (b"7z\xbc\xaf\x27\x1c", "7z"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x89HDF\r\n\x1a\n", "HDF5"), (b"\x93NUMPY", "NumPy"),
        (b"\xca\xfe\xba\xbe", "program"), (b"\xcf\xfa\xed\xfe", "program"), (pickle.dumps(1), "pickle"),
    ],
)  # fmt: skip
def test_what_is_neither_data_nor_text(head: bytes, name: str) -> None:
    assert name in disguise_of(head + bytes(20)) and disguise_of(b" " + head) == "" == disguise_of(b"")
    found = inspect("artifact/a.data", io.BytesIO(head + bytes(9)), len(head) + 9)
    assert name in found.problems[0].message and ("waiver" in found.problems[0].fix) == (name == "pickle")


def look(path: str, data: bytes) -> Any:
    found = inspect(path, io.BytesIO(data), len(data))
    return found.problems[0].message if found.problems else found.facts


def test_text_is_searched_for_nul_in_its_first_64_kibibytes() -> None:
    for path in ("artifact/a.txt", "artifact/a.py", "artifact/a.yaml"):
        assert "NUL" in look(path, b"a" * 65_535 + b"\x00") and look(path, b"a" * 65_536 + b"\x00") == {}


def test_tags_are_searched_in_the_whole_of_a_yaml_file() -> None:
    assert "tag" in look("artifact/a.yaml", b"# comment\n" * 9000 + b"a: !!python/name:os.x\n")
    assert look("artifact/a.yaml", b"a: '%TAG'\n") == {} == look("artifact/a.yaml", b"python/x: 1\n")


def test_json_beyond_64_mebibytes_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from registry.core import formats

    assert formats.LONGEST_JSON == 64 << 20
    monkeypatch.setattr(formats, "LONGEST_JSON", 10)
    assert "is not JSON" in look("artifact/a.json", b"x" * 10) and look("artifact/a.json", b"x" * 11) == {}
    assert "a gzip archive" in look("artifact/a.json", b"\x1f\x8b\x08" + bytes(9))


def test_a_table_of_numbers_is_no_tokenizer_that_is_remembered() -> None:
    assert look("tokenizer/vocab.json", b'{"a": 0}') == {}
    assert look("tokenizer/t.json", b'{"model": {"vocab": {"a": 3}}}')["tokenizer"]["largest_id"] == 3
    assert look("tokenizer/t.json", b'{"model": "x"}') == {}


def test_a_pickle_is_read_to_its_first_mebibyte() -> None:
    def stream(size: int) -> bytes:
        body = b"\x80\x02cos\nsystem\nT"
        padding = size - len(body) - 4 - 3
        return body + struct.pack("<i", padding) + bytes(padding) + b"0N."

    assert len(stream(1 << 20)) == 1 << 20 and look("artifact/m.pkl", stream(1 << 20))["imports"] == ["os.system"]
    assert look("artifact/m.pkl", stream((1 << 20) + 1)) == {"imports": ["os.system", HIDDEN], "is_plain": False}
    assert look("artifact/m.pkl", b"N." + bytes(1 << 20))["imports"] == [HIDDEN]


# --- JSON, names and shapes


def test_json_has_so_many_parts_and_members(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (jsons.MOST_CONTAINERS, jsons.MOST_MEMBERS) == (3_000_000, 12_000_000)
    monkeypatch.setattr(jsons, "MOST_CONTAINERS", 3)
    monkeypatch.setattr(jsons, "MOST_MEMBERS", 2)
    for good in (b"[[{}]]", b"[1, 2, 3]", b'["[", {}]'):
        assert jsons.parse(good, "it") == json.loads(good)
    for bad in (b"[[{}, {}]]", b"[1, 2, 3, 4]", b'[{}, {}, "["]'):
        with pytest.raises(Malformed, match="it has too many parts"):
            jsons.parse(bad, "it")


def test_a_mistake_in_json_has_its_place() -> None:
    with pytest.raises(Malformed, match="line 2, column 3"):
        jsons.parse(b"{\n  x}", "it")
    with pytest.raises(Malformed, match="not UTF-8 at byte 2"):
        jsons.parse(b'["\xff"]', "it")
    with pytest.raises(Malformed, match="the name 'b' occurs twice"):
        jsons.parse(b'{"a": 1, "b": 2, "b": 3, "a": 4}', "it")


def test_names_are_shown_on_one_line_and_short() -> None:
    assert shown("a\n") == "'a\\n'" and shown("n" * 78) == "'" + "n" * 78 + "'"
    assert shown("n" * 79) == "'" + "n" * 76 + "...'"
    assert (elements_of([]), elements_of([2, 3, 4]), elements_of([5, 0])) == (1, 24, 0)
    assert findings.MOST_TENSORS == 100_000 and findings.LARGEST == 2**53 - 1


# --- safetensors

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16,
    "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def safe(entries: dict[str, Any], data: int) -> Any:
    header = json.dumps(entries).encode()
    return look("artifact/m.safetensors", struct.pack("<Q", len(header)) + header + bytes(data))


def entry(data_type: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": data_type, "shape": shape, "data_offsets": [start, end]}


def test_a_tensor_has_the_bits_of_its_type() -> None:
    assert safetensors.BITS == BITS
    for name, bits in BITS.items():  # four of them are whole bytes, whatever the type
        assert safe({"t": entry(name, [4], 0, bits // 2)}, bits // 2)["tensors"] == [["t", name, [4]]]
        for other in (bits // 2 - 1, bits // 2 + 1):
            assert "which is not the" in safe({"t": entry(name, [4], 0, other)}, other)


def test_tensors_cover_the_data_in_order() -> None:
    two = {"b": entry("U8", [2], 1, 3), "a": entry("U8", [1], 0, 1)}
    assert safe(two, 3)["tensors"] == [["a", "U8", [1]], ["b", "U8", [2]]] and "follow the header" in safe(two, 4)
    assert "'b' overlaps the one before it" in safe({**two, "a": entry("U8", [2], 0, 2)}, 3)
    assert "'b' leaves a hole before byte 2" in safe({**two, "b": entry("U8", [1], 2, 3)}, 3)
    assert safe({"empty": entry("F32", [0], 0, 0), "one": entry("U8", [], 0, 1)}, 1)["tensors"][0] == [
        "empty",
        "F32",
        [0],
    ]


def test_shapes_and_places_are_sizes() -> None:
    assert safe({"t": entry("U8", [1] * 32, 0, 1)}, 1)["tensors"]
    for wrong in (
        entry("U8", [1] * 33, 0, 1), entry("U8", [-1], 0, 1), entry("U8", [2**53], 0, 1), {**entry("U8", [1], 0, 1), "shape": 1},
        {**entry("U8", [1], 0, 1), "data_offsets": [0]}, {**entry("U8", [1], 0, 1), "data_offsets": [0, 1, 1]},
        entry("U8", [1], -1, 0),
    ):  # fmt: skip
        assert "not sizes" in safe({"t": wrong}, 1)
    for wrong in ({}, [], {**entry("U8", [1], 0, 1), "more": 1}):
        assert "does not have dtype, shape and data_offsets" in safe({"t": wrong}, 1)
    assert "which is not the 9007199254740991 bytes" in safe({"t": entry("U8", [1], 0, 2**53 - 1)}, 1)
    assert "unknown data type '5'" in safe({"t": {**entry("U8", [1], 0, 1), "dtype": 5}}, 1)


def test_notes_of_up_to_200_letters_are_remembered() -> None:
    assert safe({"__metadata__": {"a": "x" * 200, "b": "x" * 201}}, 0) == {"tensors": [], "metadata": {"a": "x" * 200}}
    assert "not an object of texts" in safe({"__metadata__": []}, 0)


def test_a_header_lies_in_the_file_and_has_32_mebibytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert safetensors.LONGEST_HEADER == 32 << 20

    def claims(length: int, text: bytes) -> Any:
        return look("artifact/m.safetensors", struct.pack("<Q", length) + text)

    assert claims(2, b"{}") == {"tensors": [], "metadata": {}} and "claims 3 bytes of a file of 10" in claims(3, b"{}")
    monkeypatch.setattr(safetensors, "LONGEST_HEADER", 2)
    assert claims(2, b"{}") and "claims 3 bytes" in claims(3, b"{} ")
    monkeypatch.undo()
    monkeypatch.setattr(safetensors, "MOST_TENSORS", 1)
    assert safe({"a": entry("U8", [1], 0, 1)}, 1)["tensors"]
    assert "names 2 tensors, more than 1" in safe({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 1, 2)}, 2)
