"""Results that are kept, mutants that change nothing, and the score of a module."""

from __future__ import annotations

import hashlib
import json
import random
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants import session, suite
from tests.mutants.meet import Met
from tests.mutants.mutate import Mutant, mutants_of

#: What each module has to reach: killed among those that can be.
GOAL = 0.85


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can notice, and the sentence that says why."""

    module: str
    before: str
    after: str
    reason: str

    def is_of(self, mutant: Mutant) -> bool:
        return (self.module, self.before, self.after) == (mutant.path, mutant.before, mutant.after)


def read_equivalents(path: Path) -> list[Equivalent]:
    """Raises ValueError where an entry lacks its reason."""
    entries = [Equivalent(**one) for one in tomllib.loads(path.read_text()).get("mutant", [])]
    if unexplained := [one for one in entries if not one.reason.strip()]:
        raise ValueError(f"no reason is given for {unexplained}")
    return entries


def mistaken(entries: Iterable[Equivalent], mutants: list[Mutant], met: dict[int, Met]) -> list[str]:
    """One sentence for each entry of these mutants' modules that matches none of them, or matches one that is killed."""
    modules = {one.path for one in mutants}
    wrong = []
    for entry in entries:
        places = [place for place, one in enumerate(mutants) if entry.is_of(one)]
        name = f"{entry.module}: {entry.before} → {entry.after}"
        if entry.module in modules and not places:
            wrong.append(f"No such mutant any more: {name}")
        if killed := [met[place].by for place in places if place in met and met[place].status != "survived"]:
            wrong.append(f"Not equivalent, {killed[0] or 'its time limit'} kills it: {name}")
    return wrong


@dataclass
class Score:
    """The outcome of one module. `late` are those of `killed` that ran into their time limit."""

    module: str
    mutants: int = 0
    met: int = 0
    killed: int = 0
    late: int = 0
    equivalent: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Killed among those that can be, 0 to 1; a module without any has nothing left to kill."""
        possible = self.met - self.equivalent
        return self.killed / possible if possible else 1.0


def scores(mutants: list[Mutant], met: dict[int, Met], entries: list[Equivalent]) -> list[Score]:
    """One for each module, in the order of their names."""
    found: dict[str, Score] = {}
    for place, one in enumerate(mutants):
        score = found.setdefault(one.path, Score(one.path))
        score.mutants += 1
        if place not in met:
            continue
        score.met += 1
        if met[place].status != "survived":
            score.killed += 1
            score.late += met[place].status == "late"
        elif any(entry.is_of(one) for entry in entries):
            score.equivalent += 1
        else:
            score.survivors.append(one)
    return [found[module] for module in sorted(found)]


def sample(mutants: list[Mutant], most: int, seed: int) -> list[int]:
    """The places of at most so many of each module, the same ones for the same source and seed."""
    chosen = []
    for module in sorted({one.path for one in mutants}):
        places = [place for place, one in enumerate(mutants) if one.path == module]
        drawn = places if len(places) <= most else random.Random(f"{seed} {module}").sample(places, most)
        chosen += sorted(drawn)
    return chosen


def read_mutants(modules: Iterable[str]) -> list[Mutant]:
    return [one for path in modules for one in mutants_of(path, (suite.ROOT / path).read_text())]


class Results:
    """What is known from former runs, by the digest of a module's source; each result names what it rests on.

    A kill holds as long as the test that noticed is the same, a survival as long as all tests that reach the module are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "results"
        self.read: dict[str, dict[str, list[str]]] = {}

    def place(self, module: str) -> Path:
        source = hashlib.sha256((suite.ROOT / module).read_bytes()).hexdigest()[:24]
        return self.folder / f"{module.replace('/', '.')}-{source}.json"

    def of(self, module: str) -> dict[str, list[str]]:
        if module not in self.read:
            path = self.place(module)
            self.read[module] = json.loads(path.read_text()) if path.is_file() else {}
        return self.read[module]

    def known(self, mutant: Mutant) -> Met | None:
        status, by, rests_on = self.of(mutant.path).get(_key(mutant), ("", "", ""))
        return Met(status, by) if status and rests_on == _rests_on(mutant, by) else None

    def keep(self, mutant: Mutant, met: Met) -> None:
        self.of(mutant.path)[_key(mutant)] = [met.status, met.by, _rests_on(mutant, met.by)]

    def write(self) -> None:
        for module, entries in self.read.items():
            if entries:
                session.write(self.place(module), json.dumps(entries))


def _key(mutant: Mutant) -> str:
    return json.dumps(mutant.edits)


def _rests_on(mutant: Mutant, by: str) -> str:
    path = session.file_of(by)
    return suite.digest(path) if by and (suite.ROOT / path).is_file() else suite.digest_of_tests(mutant.path)
