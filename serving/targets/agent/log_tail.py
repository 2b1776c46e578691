"""The end of a server's log, fit to be shown: bounded, and without paths of the machine, secrets and control characters.

Only servers that no user reaches have theirs kept, as in staging, where gates run: a release's code may print what users send.
A server serves one release of one model, so no other team's words are in its log.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from serving.servers.core.redaction import without_paths
from serving.targets.agent import server_shim, shim_record

#: Of the log's end that is read, and of what is left of it.
_READ_BYTES, MOST_CHARS, MOST_LINES = 64 << 10, 16_000, 200
_LONGEST_LINE = 1_000
#: Seconds between two looks at one log.
LOOK_EVERY_S = 3.0
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = re.compile("\x1b\\[[0-9;]*[A-Za-z]")
#: What looks like a credential, whoever printed it: `password=…`, `Bearer …`, long runs of hexadecimal digits,
#: `AWS_SECRET_ACCESS_KEY: '…'`, `Authorization: Basic …`, `password is …`, `postgresql://name:…@host`; each run is bounded.
_CREDENTIAL = re.compile(
    r"""(?ix)
    ((?:password|passwd|passphrase|secret|token|(?:api|access|private)[_-]?key|credential|authorization)
        (?:s?[_-][\w-]{0,40})? [^\s=:]{0,3} \s* (?:[=:]+>?|\bis\b) \s* (?:(?:bearer|basic)\s+)?)
        (?:[bru]?"(?:[^"\\]|\\.)*"? | [bru]?'(?:[^'\\]|\\.)*'? | \S+)
    | (bearer\s+)\S+
    | (://[^/\s:@]{0,100}:)\S{1,200}(?=@)
    """
)
_HEX = re.compile(r"\b[0-9a-fA-F]{40,}\b")


class LogTail:
    """Looks at the logs of one replica's servers, now and then."""

    def __init__(self) -> None:
        self._looked_at, self._seen = -LOOK_EVERY_S, ("", -1)

    def changed(self, folder: Path, *, now_s: float | None = None, at_once: bool = False) -> str | None:
        """The end of the log in the server's folder, if it is time to look, or `at_once`, and the log has grown; else None."""
        now_s = time.monotonic() if now_s is None else now_s
        if not at_once and now_s - self._looked_at < LOOK_EVERY_S:
            return None
        self._looked_at = now_s
        with contextlib.suppress(OSError):
            size = (folder / server_shim.LOG_FILE).stat().st_size
            if (seen := (str(folder), size)) != self._seen:
                text = tail_of(folder)
                self._seen = seen
                return text
        return None


def tail_of(folder: Path) -> str:
    """The last lines of the log. Raises OSError."""
    lines, secret = end_of(folder / server_shim.LOG_FILE).split("\n"), _secret_of(folder)
    shown = "\n".join(cleaned(line, secret) for line in lines[-MOST_LINES:])
    return shown[-MOST_CHARS:].lstrip("\n")


def end_of(file: Path) -> str:
    """The whole lines in the last 64 KiB of a file, which a release may have written, or the end of its only line. Raises OSError."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - _READ_BYTES))
        text = opened.read(_READ_BYTES).decode("utf-8", "replace")
    return (text.partition("\n")[2] or text) if size > _READ_BYTES else text  # the first line is cut


def cleaned(line: str, secret: str = "") -> str:
    """The line without what must not be shown."""
    line = _CONTROLS.sub("", _COLOURS.sub("", line[: 4 * _LONGEST_LINE]))
    line = line.replace(secret, "…") if secret else line
    line = _HEX.sub("…", _CREDENTIAL.sub(lambda found: f"{found[1] or found[2] or found[3]}…", without_paths(line)))
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"


def _secret_of(folder: Path) -> str:
    return str(shim_record.read(folder / server_shim.LAUNCH_FILE).get("secret") or "")
