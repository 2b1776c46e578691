"""Output of a command: people's lines or a JSON document, and progress that fits a terminal or a CI log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from accounts.core.quantities import size_text
from sluicegate.client.progress import Meter

#: In a log, progress is a line at most this often.
LOG_EVERY_S = 5.0


class Output:
    """`as_json`: results go to stdout as one JSON document, everything else to stderr."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal

    def say(self, line: str) -> None:
        """One line for people, as it is."""
        self.console.print(line, markup=False)

    def result(self, value: Any, lines: Iterable[str] = ()) -> None:
        """The command's result: the value as JSON with --json, else the lines."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")
            return
        for line in lines:
            self.say(line)

    def table(self, value: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
        """A list: JSON with --json, a table on a terminal, tab-separated lines under their headings elsewhere."""
        if self.as_json:
            self.result(value)
            return
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        if not cells:
            self.say(empty)
        elif not self.is_terminal:
            for row in [list(columns), *cells]:
                print("\t".join(row), file=self.console.file)  # the console would turn the tabs into spaces
        else:
            table = Table(*columns, box=None, pad_edge=False)
            for row in cells:
                table.add_row(*row)
            self.console.print(table, markup=False)

    @contextmanager
    def progress(self, title: str, *, is_bytes: bool = False) -> Iterator[Meter]:
        """A bar on a terminal; elsewhere a line every few seconds and one at the end."""
        if self.is_terminal:
            unit = DownloadColumn(binary_units=True) if is_bytes else MofNCompleteColumn()
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                unit,
                TimeElapsedColumn(),
                TextColumn("{task.fields[note]}"),
            )
            with Progress(*columns, console=self.console) as bar:
                task = bar.add_task(title, total=None, note="")
                yield lambda done, total, note="": bar.update(task, completed=done, total=total or None, note=note)
            return
        yield _LogMeter(self, title, is_bytes=is_bytes)


class _LogMeter:
    def __init__(self, output: Output, title: str, *, is_bytes: bool) -> None:
        self.output, self.title, self.is_bytes = output, title, is_bytes
        self.said_at = time.monotonic()
        self.said = ("", -1)

    def __call__(self, done: int, total: int, note: str = "") -> None:
        is_end = bool(total) and done >= total
        due = time.monotonic() - self.said_at >= LOG_EVERY_S or is_end
        if not due or self.said == (note, done):
            return
        self.said_at, self.said = time.monotonic(), (note, done)
        amount = f"{size_text(done)} of {size_text(total)}" if self.is_bytes else f"{done} of {total}" if total else ""
        self.output.say(" ".join(part for part in (f"{self.title}:", amount, note) if part))


def short(digest: str | None) -> str:
    """The first 12 digits of a digest, for people to compare."""
    return (digest or "").removeprefix("sha256:")[:12]
