"""Slugs made from typed names."""

from __future__ import annotations

import re
import unicodedata


def slug_near(text: str, most: int, *, besides: str = "-") -> str:
    """The nearest name of 1 to `most` small letters, digits and `besides`; empty if no such character is left.

    `ResNet50` → `resnet50`, `org/model.v1` → `org-model-v1`. It begins and ends with a letter or a digit.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    ends = "-_"
    return re.sub(f"[^a-z0-9{re.escape(besides)}]+", "-", plain).strip(ends)[:most].strip(ends)
