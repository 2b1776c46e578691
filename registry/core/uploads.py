"""An upload in parts: how a file is cut, what a part must be, and the life of an upload.

    open → verifying → verified | quarantined
    open | verifying | quarantined → aborted

`open` takes parts in any order. `verifying` has all of them, and waits for one reading of the whole. Only `verified` bytes
become a blob. `quarantined` bytes were not what was announced; `aborted` ones will never be asked for again: called off, idle
for too long, or quarantined and of no interest any more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from accounts.core.addresses import API
from registry.core.files import SHA256, bare_sha256
from registry.core.schema import Problem

MIB: Final = 1 << 20
#: Up to 10 GiB a part has this size. Source: shared parts of 16 MiB at 4 connections were the fastest in our measurement.
PART_BYTES: Final = 16 * MIB
#: S3 takes 10,000 parts; a list of 2,000 is still one page of work for a person with curl.
FEWER_PARTS_THAN: Final = 2000
#: How many parts are signed in one call.
MOST_SIGNED: Final = 100


class UploadState(StrEnum):
    OPEN = "open"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    QUARANTINED = "quarantined"
    ABORTED = "aborted"


MOVES: dict[UploadState, frozenset[UploadState]] = {
    UploadState.OPEN: frozenset({UploadState.VERIFYING, UploadState.ABORTED}),
    UploadState.VERIFYING: frozenset({UploadState.VERIFIED, UploadState.QUARANTINED, UploadState.ABORTED}),
    UploadState.VERIFIED: frozenset(),
    UploadState.QUARANTINED: frozenset({UploadState.ABORTED}),
    UploadState.ABORTED: frozenset(),
}


def part_size_of(size_bytes: int, least: int = PART_BYTES) -> int:
    """The bytes of every part but the last: `least`, doubled until there are fewer than 2,000 parts."""
    size = least
    while -(-size_bytes // size) >= FEWER_PARTS_THAN:
        size *= 2
    return size


@dataclass(frozen=True)
class Part:
    """Part `number` (from 1) begins at `offset` and has `size_bytes` bytes."""

    number: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class PartPlan:
    """How a file of `size_bytes` is cut. An empty file is one empty part."""

    size_bytes: int
    part_size: int

    @property
    def count(self) -> int:
        return max(1, -(-self.size_bytes // self.part_size))

    def part(self, number: int) -> Part:
        """Raises ValueError for a number that is not 1 to `count`."""
        if not 1 <= number <= self.count:
            raise ValueError(f"part {number} of {self.count}")
        offset = (number - 1) * self.part_size
        return Part(number, offset, min(self.part_size, self.size_bytes - offset))

    def parts(self) -> list[Part]:
        return [self.part(number) for number in range(1, self.count + 1)]


def base64_of(sha256: str) -> str:
    """A sha256 of 64 hex digits as S3 writes it, in base64."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def hex_of(checksum: str) -> str:
    """The reverse of `base64_of`."""
    return base64.b64decode(checksum).hex()


def read_part_digests(value: Any, plan: PartPlan, problems: list[Problem], field: str = "part_sha256") -> list[str]:
    """One bare sha256 for each part, or every problem."""
    if not isinstance(value, list) or len(value) != plan.count:
        problems.append(
            Problem(
                field,
                f"there must be one sha256 for each of the {plan.count} parts of {plan.part_size} bytes.",
                "Cut the file into parts of that size and hash each, or leave the field out.",
            )
        )
        return []
    for i, one in enumerate(value):
        SHA256.read(one, f"{field}[{i}]", problems)
    return [] if problems else [bare_sha256(one) for one in value]


def read_requested_parts(numbers: Any, sha256: Any, plan: PartPlan, problems: list[Problem]) -> dict[int, str]:
    """{number: bare sha256} of the parts to be signed, or every problem."""
    if not isinstance(numbers, list) or not isinstance(sha256, list) or len(numbers) != len(sha256) or not numbers:
        problems.append(
            Problem(
                "numbers",
                "numbers and sha256 must be two lists of one length, with at least one part.",
                'Write {"numbers": [1, 2], "sha256": ["<of part 1>", "<of part 2>"]}.',
            )
        )
        return {}
    if len(numbers) > MOST_SIGNED:
        problems.append(
            Problem("numbers", f"{len(numbers)} parts at once are too many.", f"Ask for at most {MOST_SIGNED} a call.")
        )
        return {}
    for i, (number, digest) in enumerate(zip(numbers, sha256, strict=True)):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= plan.count:
            problems.append(Problem(f"numbers[{i}]", f"{number!r} is not a part.", f"The parts are 1 to {plan.count}."))
        SHA256.read(digest, f"sha256[{i}]", problems)
    if not problems and len(set(numbers)) < len(numbers):
        problems.append(Problem("numbers", "a part is named twice.", "Name each part once."))
    return {} if problems else {n: bare_sha256(d) for n, d in zip(numbers, sha256, strict=True)}


#: The address of a part below the API's, as `part_address` writes it.
PART_PATH: Final = r"upload-parts/(?P<upload>[0-9a-f]{32})/(?P<number>[1-9][0-9]{0,5})"


def part_address(upload: str, number: int) -> str:
    """Where the part is sent to, without the ticket: …/upload-parts/<32 hex digits>/<number>."""
    return f"{API}/upload-parts/{upload}/{number}"


@dataclass(frozen=True)
class PartTicket:
    """What a signed address of a part says: just these bytes, at just this place, until `expires_at_s` (Unix time)."""

    upload: str  # 32 hex digits
    number: int
    offset: int
    size_bytes: int
    sha256: str
    expires_at_s: int

    def signature(self, key: bytes) -> str:
        """HMAC-SHA256 over every field, 64 hex digits."""
        said = f"{self.upload}/{self.number}/{self.offset}/{self.size_bytes}/{self.sha256}/{self.expires_at_s}"
        return hmac.new(key, f"sluicegate part upload v1\n{said}".encode(), hashlib.sha256).hexdigest()

    def is_signed_by(self, key: bytes, signature: str) -> bool:
        return hmac.compare_digest(self.signature(key), signature.lower())


def bytes_problem(expected_sha256: str, expected_size: int, actual_sha256: str, actual_size: int) -> str:
    """Why these bytes are not the announced ones; empty when they are."""
    if actual_size != expected_size:
        return (
            f"The store has {actual_size} bytes, and {expected_size} were announced. "
            "Announce the size of the file that is sent, and upload it again."
        )
    if actual_sha256 != expected_sha256:
        return (
            f"The bytes have sha256 {actual_sha256}, and {expected_sha256} was announced. "
            "Compute the sha256 of the whole file that is sent, and upload it again."
        )
    return ""
