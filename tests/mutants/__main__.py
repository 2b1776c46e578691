"""`python -m tests.mutants [MODULE…]`: how many small changes of the pure cores the tests notice."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.mutants import meet, page, score, session, suite
from tests.mutants.meet import Met
from tests.mutants.score import Score

KEPT = suite.ROOT / ".build" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
SAVE_EVERY_S = 20.0


def main() -> int:
    end_children_too()
    asked = _arguments()
    modules = _modules(asked.modules)
    mutants = score.read_mutants(modules)
    wanted = score.sample(mutants, asked.sample, asked.seed) if asked.sample else list(range(len(mutants)))
    results = score.Results(KEPT)
    met = {place: known for place in wanted if (known := results.known(mutants[place]))} if not asked.again else {}
    waiting = [place for place in wanted if place not in met]
    _say(f"{len(wanted)} mutants of {len(modules)} modules; {len(met)} are known, {len(waiting)} meet the tests now")
    if waiting:
        begun = saved = time.monotonic()

        def told(number: int, one: Met) -> None:
            nonlocal saved
            place = waiting[number]
            met[place] = one
            results.keep(mutants[place], one)
            if time.monotonic() - saved > SAVE_EVERY_S:
                saved = time.monotonic()
                results.write()
                _say(f"{len(met)} of {len(wanted)} after {saved - begun:.0f} s")

        try:
            meet.meet_all([mutants[place] for place in waiting], asked.jobs, session.Store(KEPT), told)
        finally:
            results.write()
    entries = score.read_equivalents(EQUIVALENT)
    found = score.scores(mutants, met, entries)
    _print(found, with_survivors=asked.survivors)
    if asked.page:
        page.write(suite.ROOT / "docs", found, asked.sample, asked.seed)
    wrong = score.mistaken(entries, mutants, met)
    for sentence in wrong:
        _say(sentence)
    return 1 if wrong or (asked.check and any(one.share < score.GOAL for one in found)) else 0


def end_children_too() -> None:
    """SIGTERM ends this process by an exception, so that what it started is ended on the way out."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files or folders, e.g. rollouts/core (all cores)")
    parser.add_argument("--survivors", action="store_true", help="print each mutant that no test noticed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="at most N mutants of each module (all)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    parser.add_argument("--again", action="store_true", help="forget former results")
    parser.add_argument("--check", action="store_true", help=f"exit 1 where a module is below {score.GOAL:.0%}%")
    parser.add_argument("--page", action="store_true", help="write docs/mutants.md and docs/mutants.json (all modules)")
    asked = parser.parse_args()
    if asked.page and asked.modules:
        parser.error("--page is of all modules")
    return asked


def _modules(names: list[str]) -> list[str]:
    known = suite.modules()
    if not names:
        return known
    paths = [str((Path.cwd() / name).resolve().relative_to(suite.ROOT)) for name in names]
    for path in paths:
        if not any(one == path or one.startswith(f"{path}/") for one in known):
            raise SystemExit(f"{path} is no module of a core; these are: {' '.join(known)}")
    return [one for one in known if any(one == path or one.startswith(f"{path}/") for path in paths)]


def _print(found: list[Score], *, with_survivors: bool) -> None:
    for one in found:
        if with_survivors:
            for mutant in one.survivors:
                print(mutant)
        counts = f"{one.killed:4} of {one.met - one.equivalent:4} killed, {len(one.survivors):4} survived"
        print(f"{one.module:44} {counts}, {one.equivalent:3} equivalent {one.share:7.1%}", flush=True)
    met, killed = sum(one.met - one.equivalent for one in found), sum(one.killed for one in found)
    if met:
        print(f"{'all':44} {killed:4} of {met:4} killed {killed / met:.1%}")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
