"""Archives of a release folder: what is refused by its list, and what arrives unpacked."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.core.archive import Contents, read_members
from registry.core.folder_rules import MOST_MEMBERS, Member, MemberKind
from sluicegate.cli import archives
from sluicegate.cli.archives import is_archive, unpacked, with_folder
from sluicegate.cli.errors import CommandError

ROOM = 1 << 40
DOCUMENT = ("release.yaml", b"model: sentiment\n")
GOOD = [DOCUMENT, ("artifact/model.onnx", b"graph"), ("tokenizer/vocab.txt", b""), ("config.pbtxt", b"x")]


def members(*names: str, kind: MemberKind = MemberKind.FILE) -> list[Member]:
    return [Member(name, MemberKind.FOLDER if name.endswith("/") else kind, 1) for name in names]


def judged(*names: str, **more: Any) -> Contents:
    return read_members(members("release.yaml", "artifact/model.onnx", *names, **more), most_bytes=ROOM)


def refusal(contents: Contents) -> str:
    assert contents.problems and not contents.files and all(p.fix for p in contents.problems)
    return " ".join(f"{p.field} {p.message}" for p in contents.problems)


@pytest.mark.parametrize("top", ["", "./", "sentiment/", "./sentiment/"])
def test_a_release_folder_or_what_is_in_it(top: str) -> None:
    names = [f"{top}{name}" for name in ("release.yaml", "artifact/model.onnx", "artifact/deep/a.json", "notes.txt")]
    folders = [name for name in (top, f"{top}artifact/") if name]
    contents = read_members(members(*folders, *names), most_bytes=ROOM)
    assert contents.problems == ()
    assert set(contents.files) == {"release.yaml", "artifact/model.onnx", "artifact/deep/a.json"}
    assert contents.files["release.yaml"] == len(folders) and contents.size_bytes == 3


def test_what_systems_add_is_passed_over() -> None:
    contents = judged("__MACOSX/artifact/._model.onnx", "artifact/.DS_Store", "artifact/._model.onnx", "__MACOSX/")
    assert set(contents.files) == {"release.yaml", "artifact/model.onnx"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../evil.json", "leaves its folder"), ("artifact/../../format.json", "leaves its folder"), ("/etc/passwd", "absolute"),
        ("C:/x.json", "absolute"), ("artifact\\..\\x.json", "backslash"), ("artifact/a\x00.json", "control"),
        ("artifact//a.json", "empty part"),
        ("artifact/a\udcff.json", "control"), ("artifact/\ufffd.json", "not UTF-8"), ("a/" * 200, "too long"), ("notes/../x", "leaves"),
        ("artifact/Model.onnx", "one file on some"), ("artifact/model.onnx", "it is there twice"),
        ("artifact/model.onnx/x.json", "both a file and a folder"),
        ("release.yaml", "it is there twice"), ("./artifact/./x.json", "points at itself"), ("", "empty"), ("..", "leaves"), ("/", "empty"),
    ],
)  # fmt: skip
def test_names_that_are_refused(name: str, says: str) -> None:
    assert says in refusal(judged(name))


@pytest.mark.parametrize("kind", [MemberKind.LINK, MemberKind.OTHER])
def test_links_and_devices_are_mistakes_and_are_never_unpacked(kind: MemberKind) -> None:
    listed = [*members("release.yaml"), *(Member(name, kind, 0) for name in ("artifact/a.json", "notes.txt"))]
    contents = read_members(listed, most_bytes=ROOM)
    assert [one.file for one in contents.mistakes] == ["artifact/a.json"] and contents.left_out == ("notes.txt",)
    assert set(contents.files) == {"release.yaml"}


def test_mistakes_of_the_folder_do_not_stop_the_unpacking() -> None:
    contents = judged("tokeniser/vocab.txt", "artifact/run.sh")
    assert [one.file for one in contents.mistakes] == ["tokeniser/"] and not contents.problems
    assert "artifact/run.sh" in contents.files  # its format is judged with the rest of the folder


def test_bombs_are_refused_by_what_they_claim() -> None:
    def claimed(**claims: Any) -> str:
        one = Member("artifact/a.data", MemberKind.FILE, **{"size_bytes": 10, **claims})
        return refusal(read_members([*members("release.yaml"), one], most_bytes=1000))

    assert "there is room for 1000" in claimed(size_bytes=1000)
    dense = Member("artifact/a.data", MemberKind.FILE, 5000, 1)
    assert "5000 bytes are said to be packed in 1" in refusal(
        read_members([*members("release.yaml"), dense], most_bytes=ROOM)
    )
    assert "below zero" in claimed(size_bytes=-1)
    two = [Member(f"artifact/{n}.data", MemberKind.FILE, 10, 10, start) for n, start in (("a", 0), ("b", 5))]
    assert "also those of another" in refusal(read_members([*members("release.yaml"), *two], most_bytes=ROOM))
    assert "more than" in refusal(judged(*(f"notes{i}.txt" for i in range(MOST_MEMBERS))))


def test_ten_thousand_files_and_one_more() -> None:
    names = [f"artifact/{i // 100}/{i}.json" for i in range(9_999)]
    assert len(judged(*names).files) == 10_001
    [mistake] = judged(*names, "artifact/last.json").mistakes
    assert mistake.problem.message == "the release has 10001 files, and 10000 are the most."


def test_an_archive_without_release_yaml() -> None:
    for listed in (members("a/x.json", "b/y.json"), []):
        contents = read_members(listed, most_bytes=ROOM)
        assert not contents.problems and not contents.files


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.text(alphabet="a./\\\x00:é", max_size=8), st.sampled_from(MemberKind), st.integers(-1, 9)),
        max_size=6,
    )
)
def test_whatever_is_accepted_stays_in_its_folder(listed: list[tuple[str, MemberKind, int]]) -> None:
    found = [Member(*one) for one in listed]
    contents = read_members([*members("release.yaml"), *found], most_bytes=ROOM)
    for path in contents.files:
        assert not path.startswith("/") and ".." not in path.split("/") and "\\" not in path and "\x00" not in path
    assert bool(contents.files) != bool(contents.problems)
    assert not any(found[i - 1].kind is not MemberKind.FILE for i in contents.files.values() if i)


# --- true archives


def zipped(files: list[tuple[str, bytes]], **info: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            one = zipfile.ZipInfo(name)
            one.compress_type = zipfile.ZIP_DEFLATED
            for key, value in info.items():
                setattr(one, key, value)
            archive.writestr(one, data)
    return out.getvalue()


def tarred(files: list[tuple[str, bytes]], mode: str = "w:gz", **info: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files:
            one = tarfile.TarInfo(name)
            one.size = len(data)
            for key, value in info.items():
                setattr(one, key, value)
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


PACKED = {"r.zip": zipped, "r.tar.gz": tarred, "r.tgz": tarred, "r.tar": lambda files, **i: tarred(files, "w:", **i)}


def placed(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@contextmanager
def refused(says: str) -> Iterator[None]:
    with pytest.raises(CommandError) as caught:
        yield
    told = " ".join([*caught.value.lines()])
    assert says in told and caught.value.exit_code == 3, told


@pytest.mark.parametrize("name", PACKED)
def test_what_was_packed_is_what_arrives(tmp_path: Path, name: str) -> None:
    big = bytes(range(256)) * 20_000
    files = [*GOOD, ("artifact/big.data", big), ("artifact/zeros.data", bytes(1_000_000)), ("notes.txt", b"not sent")]
    archive = placed(tmp_path, name, PACKED[name]([(f"top/{n}", d) for n, d in files]))
    with unpacked(archive) as release:
        folder = release.root
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == dict(files[:-1]) and not folder.exists()


@pytest.mark.parametrize("name", PACKED)
def test_a_file_that_would_leave_its_folder_is_never_written(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    for evil in ("../evil.json", str(tmp_path / "evil.json"), "artifact/../../../evil.json"):
        archive = placed(inside, name, PACKED[name]([*GOOD, (evil, b"{}")]))
        with refused("was not unpacked"), unpacked(archive):
            pass
    assert not list(tmp_path.rglob("evil.json"))


def test_links_in_true_archives(tmp_path: Path) -> None:
    link = {"create_system": 3, "external_attr": 0o120777 << 16}
    archives = [(zipped([*GOOD], **link), "r.zip", "it is a link")]
    for kind, says in (
        (tarfile.SYMTYPE, "it is a link"),
        (tarfile.LNKTYPE, "it is a link"),
        (tarfile.CHRTYPE, "neither a file nor a folder"),
    ):
        archives.append(
            (PACKED["r.tar"]([(name, b"") for name, _ in GOOD], type=kind, linkname="/etc/passwd"), "r.tar", says)
        )
    for data, name, says in archives:
        with unpacked(placed(tmp_path, name, data)) as release:
            assert not list(release.root.iterdir()) and release.document is None
            assert {one.file for one in release.problems} == {name for name, _ in GOOD}
            assert all(says in one.problem.message for one in release.problems)


def test_a_tar_that_claims_more_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tarfile.TarInfo("artifact/bomb.data")
    header.size = 1 << 42
    data = tarred([DOCUMENT], "w:")[:1024] + header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    with refused("there is room for"), unpacked(placed(tmp_path, "r.tar", data)):
        pass
    long_name = tarfile.TarInfo("x")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 1 << 34
    with (
        refused("a header of it claims"),
        unpacked(placed(tmp_path, "r.tar", long_name.tobuf(tarfile.GNU_FORMAT) + bytes(1024))),
    ):
        pass


def test_a_zip_whose_claims_are_lies(tmp_path: Path) -> None:
    data = zipped([DOCUMENT, ("artifact/a.data", bytes(100_000))])
    at = data.rindex(b"PK\x01\x02")
    fewer = data[: at + 24] + struct.pack("<I", 10) + data[at + 28 :]
    with refused("is not the 10 bytes"), unpacked(placed(tmp_path, "r.zip", fewer)):
        pass
    other_crc = data[: at + 16] + b"abcd" + data[at + 20 :]
    with refused("is not the 100000 bytes"), unpacked(placed(tmp_path, "r.zip", other_crc)):
        pass
    bomb = data[: at + 24] + struct.pack("<I", 1 << 30) + data[at + 28 :]
    with refused("said to be packed in"), unpacked(placed(tmp_path, "r.zip", bomb)):
        pass
    twice = data[: at + 42] + struct.pack("<I", 0) + data[at + 46 :]
    with refused("another member"), unpacked(placed(tmp_path, "r.zip", twice)):
        pass
    with refused("is encrypted"), unpacked(placed(tmp_path, "r.zip", data[: at + 8] + b"\x01" + data[at + 9 :])):
        pass
    with (
        refused("packed by method 14"),
        unpacked(placed(tmp_path, "r.zip", data[: at + 10] + b"\x0e" + data[at + 11 :])),
    ):
        pass


@pytest.mark.parametrize("name", PACKED)
def test_damage_of_any_kind_is_a_refusal(tmp_path: Path, name: str) -> None:
    data = PACKED[name](GOOD)
    for spoilt in (b"", b"PK", data[: min(len(data) // 2, 520)], b"x" * 2000, data[:40] + b"\xff" * 40 + data[80:]):
        with pytest.raises(CommandError) as caught, unpacked(placed(tmp_path, name, spoilt)):
            pass
        assert caught.value.exit_code == 3 and caught.value.lines()


def test_a_tar_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data = PACKED["r.tar"](GOOD)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.getmembers()
        end = tar.offset
    for length in (*range(0, end + 1024, 256), end + 1023):
        with pytest.raises(CommandError), unpacked(placed(tmp_path, "r.tar", data[:length])):
            pass
    with unpacked(placed(tmp_path, "r.tar", data[: end + 1024])) as release:
        folder = release.root
        assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
            name for name, _ in GOOD
        }


def test_a_packed_tar_is_verified_to_its_last_byte(tmp_path: Path) -> None:
    """Its end has a checksum and the size of what was packed."""
    data = PACKED["r.tar.gz"](GOOD)
    for length in range(len(data) - 12, len(data)):
        with pytest.raises(CommandError), unpacked(placed(tmp_path, "r.tar.gz", data[:length])):
            pass
    with pytest.raises(CommandError), unpacked(placed(tmp_path, "r.tar.gz", data[:-8] + b"\0\0\0\0" + data[-4:])):
        pass
    more = gzip.compress(gzip.decompress(data) + b"more")
    with refused("more behind the mark"), unpacked(placed(tmp_path, "r.tar.gz", more)):
        pass
    with unpacked(placed(tmp_path, "r.tar.gz", gzip.compress(gzip.decompress(data) + bytes(1 << 20)))) as release:
        assert (release.root / "release.yaml").is_file()


@settings(max_examples=150)
@given(st.sampled_from(sorted(PACKED)), st.data())
def test_spoilt_archives_are_refused_or_unpacked(
    tmp_path_factory: pytest.TempPathFactory, name: str, draw: st.DataObject
) -> None:
    data = bytearray(PACKED[name](GOOD))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at : at + 2] = draw.draw(st.binary(min_size=1, max_size=4))
    archive = placed(tmp_path_factory.mktemp("spoilt"), name, bytes(data))
    with suppress(CommandError), unpacked(archive) as release:  # any other error fails
        folder = release.root
        assert (folder / "release.yaml").is_file()


def test_what_is_an_archive(tmp_path: Path) -> None:
    (tmp_path / "folder.zip").mkdir()
    assert (
        is_archive(Path("a.ZIP"))
        and is_archive(Path("a.tar.gz"))
        and not is_archive(Path("a"))
        and not is_archive(tmp_path / "folder.zip")
    )
    assert with_folder(tmp_path, lambda folder: folder.root) == tmp_path
    archive = placed(tmp_path, "r.zip", zipped(GOOD))
    assert with_folder(archive, lambda folder: sorted(path.name for path in folder.root.iterdir())) == [
        "artifact", "config.pbtxt", "release.yaml", "tokenizer",
    ]  # fmt: skip
    with refused("There is no file"):
        with_folder(tmp_path / "absent.zip", lambda folder: folder)


def test_room_is_what_the_disk_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = archives._SPARE_BYTES + 10

    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: Usage)
    with refused("there is room for 10"), unpacked(placed(tmp_path, "r.zip", zipped(GOOD))):
        pass


# --- limits at their edges


def test_twenty_one_thousand_members_are_looked_at() -> None:
    def noted(count: int) -> Contents:
        return judged(*(f"notes{i}.txt" for i in range(count - 2)))

    assert MOST_MEMBERS == 21_000 and noted(MOST_MEMBERS).problems == ()
    assert (
        "more than 21000 files and folders" in refusal(noted(MOST_MEMBERS + 1))
        and noted(MOST_MEMBERS + 1).size_bytes == 0
    )


def claimed(size: int, packed: int | None = None, start: int | None = None, name: str = "artifact/a.data") -> Member:
    return Member(name, MemberKind.FILE, size, packed, start)


def with_document(*found: Member, room: int = ROOM) -> Contents:
    return read_members([*members("release.yaml"), *found], most_bytes=room)


def test_there_is_room_for_all_or_for_nothing() -> None:
    assert with_document(claimed(999), room=1000).size_bytes == 1000
    assert "there is room for 1000" in refusal(with_document(claimed(1000), room=1000))
    assert with_document(claimed(0)).size_bytes == 1


def test_a_byte_unpacks_to_1100_at_most() -> None:
    assert with_document(claimed(2200, 2)).problems == () == with_document(claimed(1100, 0)).problems
    assert "2201 bytes are said" in refusal(with_document(claimed(2201, 2)))
    assert "1101 bytes are said" in refusal(with_document(claimed(1101, 0)))


def test_members_lie_side_by_side_and_share_nothing() -> None:
    first = claimed(5, 5, 0)
    assert (
        with_document(first, claimed(5, 5, 5, "artifact/b.data"), claimed(5, None, 10, "artifact/c.data")).problems
        == ()
    )
    assert "also those of another" in refusal(with_document(first, claimed(5, 5, 4, "artifact/b.data")))
    assert "also those of another" in refusal(with_document(claimed(5, 5, 4, "artifact/b.data"), first))


def test_long_names_are_shown_short() -> None:
    (plain,) = with_document(Member("n" * 120, MemberKind.FILE, -1)).problems
    (cut,) = with_document(Member("n" * 121, MemberKind.FILE, -1)).problems
    assert (plain.field, cut.field) == ("n" * 120, "n" * 117 + "...")
