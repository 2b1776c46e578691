"""The text of a stored file, for people to read: its beginning, within a bound, or why there is none."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from accounts.core.quantities import size_text
from ledger.core.errors import DomainError
from registry.core.text_diff import LONGEST_BYTES
from registry.models import Blob
from registry.storage import store

#: Controls that no text has many of: more than one in so many characters, and it is no text.
_CONTROLS, _TEXT_PER_CONTROL = [chr(code) for code in range(32) if chr(code) not in "\t\n\r\f"], 100


@dataclass(frozen=True)
class FileText:
    """`text` is None where the file is no text, and `why_not` says so. `is_whole`: nothing of it lies beyond the bound."""

    text: str | None
    why_not: str = ""
    is_whole: bool = True


def text_of(blob: Blob, *, is_named_text: bool = False, most_bytes: int = LONGEST_BYTES) -> FileText:
    """The first bytes of the blob as text.

    What is not UTF-8, or holds a zero byte, is binary; what is full of control characters too, unless its name says that it
    is text.
    """
    size = size_text(blob.size_bytes)
    if blob.collected_at is not None:
        return FileText(None, f"Its bytes were deleted on {blob.collected_at:%Y-%m-%d}.")
    try:
        data = store().keys.read_range(blob.store_key, 0, most_bytes + 1)
    except (DomainError, OSError):
        return FileText(None, "The store does not have its bytes now.")
    is_whole = len(data) <= most_bytes
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data[:most_bytes], is_whole)
    except UnicodeDecodeError:
        return FileText(None, f"Binary, {size}.")
    controls = sum(map(text.count, _CONTROLS))
    is_binary = "\0" in text or (not is_named_text and controls * _TEXT_PER_CONTROL > len(text))
    return FileText(None, f"Binary, {size}.") if is_binary else FileText(text, is_whole=is_whole)
