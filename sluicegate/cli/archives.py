"""An archive in the place of a release folder: judged by its list, then unpacked into a folder that goes away again.

Only zip, tar and tar.gz, and of them only what every tool writes alike: stored or deflated members, ordinary files.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from registry.core.archive import Contents, read_members
from registry.core.folder_rules import MOST_MEMBERS, Arranged, Member, MemberKind
from registry.core.formats import zipped
from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window
from sluicegate.cli.errors import CommandError, refuse
from sluicegate.client.folder import ReleaseFolder, arranged_folder, read_folder

ENDINGS: Final = (".zip", ".tar", ".tar.gz", ".tgz")
_CHUNK: Final = 1 << 20
#: Room that is left on the disk.
_SPARE_BYTES: Final = 64 << 20
#: tarfile reads the names of long paths and its own extensions whole: none of them is longer than this.
_LONGEST_READ: Final = 4 << 20
#: Most zero bytes after the end mark. Tools fill their last block with zeros.
_MOST_PADDING: Final = 4 << 20


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive, and not of a folder."""
    return path.name.lower().endswith(ENDINGS) and not path.is_dir()


@contextmanager
def unpacked(archive: Path) -> Iterator[ReleaseFolder]:
    """A release folder with the archive's contents, for as long as it is needed. Raises CommandError (exit 3)."""
    with tempfile.TemporaryDirectory(prefix="sluicegate-push-") as name:
        folder = Path(name)
        most = max(0, shutil.disk_usage(folder).free - _SPARE_BYTES)
        try:
            unpack = _unpack_zip if archive.name.lower().endswith(".zip") else _unpack_tar
            contents = unpack(archive, folder, most)
        except Malformed as error:
            raise refuse(f"{archive} cannot be unpacked: {error.message}.", error.fix) from error
        except (tarfile.TarError, EOFError, zlib.error, ValueError, IndexError, gzip.BadGzipFile) as error:
            raise refuse(f"{archive} cannot be unpacked: {error}.", "Pack the archive again.") from error
        except OSError as error:
            raise refuse(
                f"{archive} cannot be unpacked: {error.strerror or error}.", "Look at the file and the disk."
            ) from error
        yield arranged_folder(folder, Arranged(contents.files, contents.left_out, contents.mistakes))


def _unpack_zip(archive: Path, folder: Path, most: int) -> Contents:
    with archive.open("rb") as file:
        # each member has a short header of its own, and they lie far apart
        window = Window(file, archive.stat().st_size, chunk_bytes=256, most_fetches=4 * zipped.MOST_MEMBERS)
        listed = zipped.members(window)
        contents = _judged(archive, [_of_zip(window, one) for one in listed], most)
        for path, i in contents.files.items():
            _write(folder, path, listed[i].size_bytes, _inflated(file, window, listed[i]), listed[i].crc)
    return contents


def _of_zip(window: Window, one: zipped.ZipEntry) -> Member:
    kind = MemberKind.FOLDER if one.name.endswith("/") else MemberKind.FILE
    if one.file_type not in (0, 0o100000, 0o040000):
        kind = MemberKind.LINK if one.file_type == 0o120000 else MemberKind.OTHER
    if one.is_encrypted or one.method not in (0, 8):
        how = "is encrypted" if one.is_encrypted else f"is packed by method {one.method}"
        raise Malformed(f"{one.name!a} {how}", "Pack the archive with ordinary compression and without a password.")
    return Member(one.name, kind, one.size_bytes, one.packed_bytes, zipped.data_start(window, one))


def _inflated(file: BinaryIO, window: Window, one: zipped.ZipEntry) -> Iterator[bytes]:
    """The member's bytes, in pieces of at most 1 MiB."""
    file.seek(zipped.data_start(window, one))
    left, inflate = one.packed_bytes, zlib.decompressobj(-zlib.MAX_WBITS)
    while left and (piece := file.read(min(left, _CHUNK))):
        left -= len(piece)
        if one.method == 0:
            yield piece
            continue
        while piece:
            yield inflate.decompress(piece, _CHUNK)
            piece = inflate.unconsumed_tail
    if one.method == 8:
        yield inflate.flush()


class _Bounded(io.RawIOBase):
    """A tar file whose headers cannot ask for more memory than they need."""

    def __init__(self, inner: gzip.GzipFile | BinaryIO) -> None:
        self.inner = inner

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise Malformed(f"a header of it claims {size} bytes", "Pack the archive again.")
        return self.inner.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self.inner.seek(offset, whence)

    def tell(self) -> int:
        return self.inner.tell()


@contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    is_packed = archive.name.lower().endswith(("gz", "tgz"))
    with gzip.open(archive) if is_packed else archive.open("rb") as inner:
        bounded: Any = _Bounded(inner)
        with tarfile.open(fileobj=bounded, mode="r:") as tar:
            yield tar


def _unpack_tar(archive: Path, folder: Path, most: int) -> Contents:
    with _open_tar(archive) as tar:
        members = []
        claimed = 0
        while (one := tar.next()) is not None:
            members.append(_of_tar(one))
            claimed += max(one.size, 0)
            if claimed > most or len(members) > MOST_MEMBERS:
                break  # before its bytes are passed over, which for a bomb would never end
        contents = _judged(archive, members, most)
        _require_end(tar)
    by_position = {i: path for path, i in contents.files.items()}
    with _open_tar(archive) as tar:
        for i in range(len(members)):
            one = tar.next()
            if one is not None and i in by_position:
                _write(folder, by_position[i], one.size, _chunks(tar, one))
    return contents


def _require_end(tar: tarfile.TarFile) -> None:
    """Raises Malformed unless the mark stands where the last member ends, for a reader takes any cut there for the end.

    Source: POSIX pax, ustar interchange format: two blocks of 512 zero bytes end an archive.
    """
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(2 * tarfile.BLOCKSIZE) != bytes(2 * tarfile.BLOCKSIZE):
        raise Malformed("it is cut off: the mark of its end is missing", "Pack it again, or send the whole file.")
    padding = 0
    while piece := tar.fileobj.read(_CHUNK):  # reads up to the gzip trailer, so that its checksum is verified
        padding += len(piece)
        if any(piece) or padding > _MOST_PADDING:
            raise Malformed("it has more behind the mark of its end", "Pack it again.")


def _of_tar(one: tarfile.TarInfo) -> Member:
    kind = MemberKind.FOLDER if one.isdir() else MemberKind.LINK if one.issym() or one.islnk() else MemberKind.OTHER
    if one.isreg() and not one.issparse():
        kind = MemberKind.FILE
    return Member(one.name, kind, one.size)


def _chunks(tar: tarfile.TarFile, one: tarfile.TarInfo) -> Iterator[bytes]:
    source = tar.extractfile(one)
    assert source is not None  # it is an ordinary file
    with source:
        while chunk := source.read(_CHUNK):
            yield chunk


def _judged(archive: Path, members: list[Member], most: int) -> Contents:
    contents = read_members(members, most_bytes=most)
    if contents.problems:
        raise refuse(
            f"{archive} was not unpacked: it has {len(contents.problems)} mistakes.",
            errors=[problem.as_json() for problem in contents.problems[:50]],
        )
    return contents


def _write(folder: Path, path: str, size: int, chunks: Iterator[bytes], crc: int | None = None) -> None:
    """The file, held to its claimed size while it is written."""
    target = folder.joinpath(*path.split("/"))
    target.parent.mkdir(parents=True, exist_ok=True)
    written, found = 0, 0
    with target.open("xb") as out:
        for chunk in chunks:
            written += len(chunk)
            if written > size:
                break
            found = zlib.crc32(chunk, found)
            out.write(chunk)
    if written != size or (crc is not None and found != crc):
        raise Malformed(
            f"{path} is not the {size} bytes that the archive claims", "Pack the archive again; this one is damaged."
        )


Run = Callable[[ReleaseFolder], Any]


def with_folder(place: Path, run: Run) -> Any:
    """What `run` returns for the release folder at this place, or for the one packed in this archive."""
    if not is_archive(place):
        return run(read_folder(place))
    if not place.is_file():
        raise CommandError(f"There is no file {place}.", exit_code=3, next_step="Name an archive or a release folder.")
    with unpacked(place) as folder:
        return run(folder)
