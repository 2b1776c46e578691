"""What every run shares: a database of its own, a folder, processes that end with it, and what is noted of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tests.kills import databases
from tests.kills.campaign import Played
from tests.kills.process import Child

#: So long processes may take to write where they are.
STACKS_S = 0.5


class Stage(ABC):
    """`tell()` is the run; it notes in `played` what it finds."""

    template: str
    folder: Path
    database = ""  # this process's own, unless a name is given

    def play(self) -> Played:
        began = time.monotonic()
        self.played, self.children = Played(), list[Child]()
        self.place = self.folder / f"run-{os.getpid()}"
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        self.log = self.place / "log"
        database = self.database or f"kills_run_{os.getpid()}"
        databases.copy(self.template, database)
        databases.use(database)
        try:
            with self._everybody_ended():
                self.tell()
        except Exception as error:
            self.played.problems.append(f"{type(error).__name__}: {error}")
        if self.played.problems:
            self.played.log = self.log.read_text()[-20_000:] if self.log.exists() else ""
        self.played.took_s = time.monotonic() - began
        return self.played

    @abstractmethod
    def tell(self) -> None:
        """What happens, with the victim in it."""

    def begin(self, child: Child) -> Child:
        """The child, which will not outlive the run."""
        self.children.append(child)
        return child

    @contextlib.contextmanager
    def _everybody_ended(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            for child in self.children:
                child.tell_where_it_is()
            time.sleep(STACKS_S)
            raise
        finally:
            for child in self.children:
                child.kill()
            databases.use("postgres")
