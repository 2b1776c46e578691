"""The bound of the reasons that people give."""

from __future__ import annotations

#: Characters.
LONGEST_REASON = 2000
