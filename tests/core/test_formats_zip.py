"""A zip's table of contents, and what a TorchScript archive or a plan says of itself, at their edges."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.formats import inspect, torchscript, zipped
from registry.core.formats.findings import Malformed
from registry.core.formats.pickles import HIDDEN
from registry.core.formats.window import Window
from registry.core.formats.zipped import ZipEntry, data_start, members, stored
from tests.support.worlds.model_files import plan_file, rtx_plan_file


def window(data: bytes) -> Window:
    return Window(io.BytesIO(data), len(data))


def zip_of(*files: tuple[str, bytes], how: int = zipfile.ZIP_STORED, comment: bytes = b"", **info: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files:
            one = zipfile.ZipInfo(name)
            one.compress_type = how
            for key, value in info.items():
                setattr(one, key, value)
            archive.writestr(one, data)
        archive.comment = comment
    return out.getvalue()


TWO = zip_of(("a.txt", b"alpha"), ("deep/b.txt", b"be"), create_system=3, external_attr=0o100644 << 16)


def wide_zip(*, size: int = 5, packed: int = 5, start: int = 0, extra_first: bytes = b"") -> bytes:
    """A zip of one stored file whose sizes and places are all told in 64 bits."""
    full, name, data = 0xFFFFFFFF, b"a.txt", b"alpha"
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, 0, 7, 5, 5, len(name), 0) + name + data
    extra = extra_first + struct.pack("<HHQQQ", 1, 24, size, packed, start)
    entry = struct.pack("<4sBBHHHHHIIIHHHHHII", b"PK\x01\x02", 45, 3, 45, 0, 0, 0, 0, 7, full, full, len(name), len(extra), 0,
                        0, 0, 0o120777 << 16, full) + name + extra  # fmt: skip
    at = len(local)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(entry), at)
    place = struct.pack("<4sIQI", b"PK\x06\x07", 0, at + len(entry), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, full, full, 0)
    return local + entry + record + place + end


def spoilt(data: bytes, at: int, new: bytes) -> bytes:
    at = at if at >= 0 else len(data) + at
    return data[:at] + new + data[at + len(new) :]


def test_members_are_those_that_the_standard_library_reads() -> None:
    for data in (TWO, zip_of(("x", b"1" * 999), how=zipfile.ZIP_DEFLATED, comment=b"c" * 300), zip_of()):
        theirs = zipfile.ZipFile(io.BytesIO(data)).infolist()
        assert members(window(data)) == [
            ZipEntry(one.filename, one.compress_type, one.compress_size, one.file_size, one.header_offset, False,
                     (one.external_attr >> 16) & 0o170000, one.CRC)
            for one in theirs
        ]  # fmt: skip
    assert members(window(TWO))[0].file_type == 0o100000
    assert [one.name for one in members(window(zip_of(("a", b""), ("", b""))))] == ["a", ""]
    dos = zip_of(("a", b""), create_system=0, external_attr=0o120777 << 16)
    assert members(window(dos))[0].file_type == 0  # only Unix tells it


def test_an_entry_may_carry_a_comment_an_extra_field_and_a_sign_of_encryption() -> None:
    data = zip_of(("a", b"1"), ("b", b"2"), comment=b"", extra=b"\x99\x99\x02\x00hi", flag_bits=0)
    commented = zip_of(("a", b"1"), ("b", b"2"))
    assert [one.name for one in members(window(data))] == ["a", "b"] == [one.name for one in members(window(commented))]
    at = data.index(b"PK\x01\x02")
    assert members(window(spoilt(data, at + 8, b"\x01")))[0].is_encrypted
    assert not members(window(spoilt(data, at + 8, b"\x02")))[0].is_encrypted
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        one = zipfile.ZipInfo("a")
        one.comment = b"says something"
        archive.writestr(one, b"1")
        archive.writestr("b", b"2")
    assert [one.name for one in members(window(out.getvalue()))] == ["a", "b"]


def test_a_table_of_contents_in_64_bits() -> None:
    (one,) = members(window(wide_zip()))
    assert (one.name, one.size_bytes, one.packed_bytes, one.start, one.file_type, one.crc) == (
        "a.txt",
        5,
        5,
        0,
        0o120000,
        7,
    )
    (one,) = members(window(wide_zip(size=9, packed=8, start=7, extra_first=b"\x99\x99\x03\x00abc")))
    assert (one.size_bytes, one.packed_bytes, one.start) == (9, 8, 7)
    assert stored(window(wide_zip()), members(window(wide_zip()))[0], 3) == b"alp"


def test_only_values_that_are_full_are_told_in_64_bits() -> None:
    data = wide_zip(size=9, packed=8, start=7)
    at = data.index(b"PK\x01\x02")
    (one,) = members(
        window(spoilt(data, at + 24, struct.pack("<I", 5)))
    )  # the size fits; the field goes on with the next
    assert (one.size_bytes, one.packed_bytes, one.start) == (5, 9, 8)
    field = data.index(struct.pack("<HH", 1, 24))
    (one,) = members(window(spoilt(data, field + 2, struct.pack("<H", 16))))
    assert (one.size_bytes, one.packed_bytes, one.start) == (9, 8, 0xFFFFFFFF)
    (one,) = members(window(spoilt(data, field + 2, struct.pack("<H", 15))))  # a value that is cut short is none
    assert (one.size_bytes, one.packed_bytes, one.start) == (9, 0xFFFFFFFF, 0xFFFFFFFF)
    (one,) = members(window(spoilt(data, field, struct.pack("<H", 2))))
    assert (one.size_bytes, one.packed_bytes, one.start) == (0xFFFFFFFF,) * 3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no table of contents"),
        (TWO[:-1], "no table of contents"),
        (spoilt(TWO, -10, struct.pack("<I", 1 << 30)), "its directory claims 1073741824 bytes"),
        (spoilt(TWO, -6, struct.pack("<I", len(TWO))), "its directory claims"),
        (spoilt(TWO, TWO.index(b"PK\x01\x02"), b"XX"), "its directory is damaged"),
        (spoilt(TWO, TWO.rindex(b"PK\x01\x02") + 28, b"\xff"), "its directory is cut short"),
        (spoilt(TWO, -10, struct.pack("<I", 60)), "names too many files"),
        (spoilt(TWO, -10, b"\xff" * 4), "64-bit table of contents is missing"),
        (spoilt(TWO, -6, b"\xff" * 4), "64-bit table of contents is missing"),
        (spoilt(wide_zip(), wide_zip().index(b"PK\x06\x07"), b"XX"), "64-bit table of contents is missing"),
        (spoilt(wide_zip(), wide_zip().index(b"PK\x06\x06"), b"XX"), "64-bit table of contents is damaged"),
    ],
)
def test_damage_is_named(data: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        members(window(data))


def test_the_64_bit_table_counts_though_the_short_one_is_not_full() -> None:
    """Readers that follow the short one would see other members: the long one is what everybody must see."""
    data = wide_zip()
    short = spoilt(spoilt(data, -10, struct.pack("<I", 1)), -6, struct.pack("<I", 1))
    assert [one.name for one in members(window(short))] == ["a.txt"]


def test_a_comment_as_long_as_it_may_be() -> None:
    data = zip_of(("a.txt", b"alpha"), comment=b"c" * 0xFFFF)
    assert [one.name for one in members(window(data))] == ["a.txt"]
    with pytest.raises(Malformed, match="no table of contents"):
        members(window(data + b"c"))


def test_a_directory_is_at_most_so_long_and_has_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    size = struct.unpack_from("<I", TWO, len(TWO) - 10)[0]
    assert zipped.LONGEST_DIRECTORY == 32 * 2**20
    monkeypatch.setattr(zipped, "LONGEST_DIRECTORY", size)
    assert len(members(window(TWO))) == 2
    monkeypatch.setattr(zipped, "LONGEST_DIRECTORY", size - 1)
    with pytest.raises(Malformed, match="its directory claims"):
        members(window(TWO))
    monkeypatch.undo()
    monkeypatch.setattr(zipped, "MOST_MEMBERS", 2)
    assert len(members(window(TWO))) == 2
    monkeypatch.setattr(zipped, "MOST_MEMBERS", 1)
    with pytest.raises(Malformed, match="names too many files"):
        members(window(TWO))


def test_the_bytes_of_a_member_lie_behind_its_own_header() -> None:
    first, second = members(window(TWO))
    assert (data_start(window(TWO), first), data_start(window(TWO), second)) == (35, 35 + 5 + 30 + len("deep/b.txt"))
    assert stored(window(TWO), first, 99) == b"alpha" and stored(window(TWO), second, 99) == b"be"
    assert stored(window(TWO), first, 2) == b"al" and stored(window(TWO), first, 0) == b""
    extra = zip_of(("a.txt", b"alpha"), extra=b"\x99\x99\x02\x00hi")
    assert stored(window(extra), members(window(extra))[0], 99) == b"alpha"
    packed = zip_of(("a.txt", b"alpha"), how=zipfile.ZIP_DEFLATED)
    assert stored(window(packed), members(window(packed))[0], 99) == b""


def test_a_member_that_is_not_where_its_directory_says() -> None:
    def entry(start: int, packed: int, encrypted: bool = False) -> ZipEntry:
        return ZipEntry("a.txt", 0, packed, packed, start, encrypted)

    assert stored(window(TWO), entry(0, len(TWO) - 35), 10**6) == TWO[35:]
    for wrong in (entry(0, len(TWO) - 34), entry(1, 5), entry(10**9, 5)):
        with pytest.raises(Malformed):
            data_start(window(TWO), wrong)
        assert stored(window(TWO), wrong, 99) == b""
    assert stored(window(TWO), entry(0, 5, encrypted=True), 99) == b""


# --- TorchScript and plans

CODE = ("m/code/__torch__.py", b"class M: pass")
DATA = ("m/data.pkl", pickle.dumps(OrderedDict(a=1), 2))


def refusal(path: str, data: bytes) -> str:
    (problem,) = inspect(path, io.BytesIO(data), len(data)).problems
    return problem.message


def test_facts_of_a_torchscript_archive() -> None:
    constants = ("m/constants.pkl", pickle.dumps(print, 2))
    data = zip_of(CODE, ("m/code/a.py", b""), ("m/code/a.py.debug_pkl", b""), DATA, constants)
    found = inspect("artifact/model.pt", io.BytesIO(data), len(data)).facts
    assert found == {"members": 5, "code_files": 2, "imports": ["collections.OrderedDict"], "weights_bytes": 0}


@pytest.mark.parametrize("files", [(CODE,), (DATA,), (DATA, ("m/code/a.txt", b"")), (DATA, ("m/a.py", b""))])
def test_an_archive_without_code_or_data_is_no_torchscript(files: tuple[tuple[str, bytes], ...]) -> None:
    assert "holds no TorchScript code" in refusal("artifact/model.pt", zip_of(*files))
    assert "no zip archive" in refusal("artifact/model.pt", b"text")


def test_a_bare_pickle_is_told_by_its_first_64_kib() -> None:
    for letters, what in ((1000, "a bare pickle"), (1 << 16, "no zip archive")):
        data = pickle.dumps(["a" * letters, OrderedDict()], 0)
        assert f"it is {what}, and a TorchScript file is a zip archive" in refusal("artifact/model.pt", data)


def test_a_mebibyte_of_each_pickle_is_read() -> None:
    assert torchscript.MOST_READ == 1 << 20
    body = pickle.dumps(OrderedDict(), 2)[:-1]
    for size, hidden in ((1 << 20, []), ((1 << 20) + 1, [HIDDEN])):
        padding = size - len(body) - len(b"T....0.")
        data = zip_of(CODE, ("m/data.pkl", body + b"T" + struct.pack("<i", padding) + bytes(padding) + b"0."))
        found = inspect("artifact/model.pt", io.BytesIO(data), len(data)).facts
        assert found["imports"] == ["collections.OrderedDict", *hidden]


def test_a_plan_is_told_by_its_first_28_bytes() -> None:
    data = plan_file(b"x" * 99, tensorrt=(10, 3, 0, 26))
    assert inspect("artifact/model.plan", io.BytesIO(data), len(data)).facts == {
        "flavour": "standard", "magic": "ftrt", "header": data[:28].hex(), "serialization": 0, "tensorrt": "10.3.0.26",
        "compute_capabilities": None,
    }  # fmt: skip
    assert "it has 27 bytes, fewer" in refusal("artifact/model.plan", b"ftrt" + bytes(23))
    assert "metadata before the plan" in refusal("artifact/model.plan", b"\xff\xff\xff\x00{" + bytes(23))
    assert "does not begin as a TensorRT plan" in refusal("artifact/model.plan", b"\xff\xff\xff{\x00" + bytes(23))


@pytest.mark.parametrize("other", [{"magic": b"ptrt"}, {"serialization": 1}, {"tensorrt": (0, 3, 0, 26)}])
def test_where_the_version_of_a_plan_is_not_known_to_stand_it_is_unknown(other: dict[str, Any]) -> None:
    data = plan_file(**other)
    assert inspect("artifact/model.plan", io.BytesIO(data), len(data)).facts["tensorrt"] is None


def test_a_plan_of_tensorrt_for_rtx_tells_its_compute_capabilities_and_its_size() -> None:
    def facts(data: bytes) -> dict[str, Any]:
        return dict(inspect("artifact/model.plan", io.BytesIO(data), len(data)).facts)

    data = rtx_plan_file(b"x" * 99, bits=0b001001)
    assert facts(data).items() >= {"flavour": "rtx", "magic": "vtrt", "tensorrt": "1.7.1.116"}.items()
    assert facts(data)["compute_capabilities"] == ["7.5", "8.9"] and len(facts(data)["header"]) == 56
    for bits in (
        0b1111110,
        0b1000001,
        1 << 31,
    ):  # a plan for no named target has the seventh; it may run on more than the others
        assert facts(rtx_plan_file(bits=bits))["compute_capabilities"] is None
    assert facts(rtx_plan_file(bits=0))["compute_capabilities"] is None
    other = data[:28] + b"next" + data[32:]
    assert facts(other)["compute_capabilities"] is None and facts(other)["tensorrt"] == "1.7.1.116"
    assert facts(other[:40])["flavour"] == "rtx", "of another layout, bytes 16 to 23 are not known to count the plan"
    short = f"it is truncated: its header counts {len(data)} bytes, and it has {len(data) - 1}"
    assert short in refusal("artifact/model.plan", data[:-1])
    assert "it is longer than the plan in it" in refusal("artifact/model.plan", data + b"x")
    assert "it has 35 bytes, fewer" in refusal("artifact/model.plan", data[:35])
    assert "metadata before the plan" in refusal("artifact/model.plan", b"\x0c\x00\x00\x00{" + data)


@given(
    st.sampled_from([b"", b"ftrt", b"ptrt", b"vtrt", b"ftrt" + bytes(4), rtx_plan_file()[:32]]), st.binary(max_size=64)
)
def test_any_bytes_are_a_plan_with_facts_or_a_problem(magic: bytes, rest: bytes) -> None:
    found = inspect("artifact/model.plan", io.BytesIO(magic + rest), len(magic + rest))
    assert bool(found.problems) != bool(found.facts)
