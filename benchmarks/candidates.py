"""Releases that are good, and releases that are bad in one way each: does every one meet its stated fate, again and again?

Run `python -m benchmarks.candidates [--runs 3] [--only NAME]`; half an hour on two cores. Each run starts the candidate on a real Triton
of its own and asks it by the gates of its trial (tests/support/worlds/candidates.py), until one does not
pass. Ends with 1 where one verdict, one gate or one reason is not as stated. The first run of all fetches 83 MB of weights.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.rigs.candidate_rig import Judged
    from tests.support.worlds.candidates import Candidate


def is_as_stated(candidate: Candidate, judged: Judged) -> bool:
    is_same = (judged.found.verdict, judged.gate) == (candidate.verdict, candidate.judge)
    return is_same and re.search(candidate.says, judged.found.reason) is not None


def row(candidate: Candidate, runs: Sequence[Judged]) -> str:
    stated = f"{candidate.verdict.value} by {candidate.gate}" if candidate.gate else "passed"
    gates = (
        ", ".join(candidate.trial.policy["gates"]) if not candidate.gate else ", ".join({one.gate: 0 for one in runs})
    )
    verdicts = " ".join(one.found.verdict.value for one in runs)
    seconds = ", ".join(f"{one.seconds:.0f}" for one in runs)
    return f"| {candidate.name} | {candidate.how} | {stated} | {gates} | {verdicts} | {seconds} |"


def main() -> int:
    from tests.support.rigs.candidate_rig import stage
    from tests.support.worlds.candidates import CANDIDATES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="how often each, in a row")
    parser.add_argument("--only", default="", help="candidates whose name holds this text")
    given, wrong = parser.parse_args(), 0
    print("| candidate | how it is made | stated | judged by | verdicts | seconds |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder)) as servers:
        for candidate in CANDIDATES:
            if given.only not in candidate.name:
                continue
            runs = [servers.judged(candidate) for _ in range(given.runs)]
            print(row(candidate, runs), flush=True)
            for one in runs:
                if not is_as_stated(candidate, one):
                    wrong += 1
                    print(f"{candidate.name}: {one.gate} {one.found.verdict}: {one.found.reason}", file=sys.stderr)
    print(f"\n{wrong} not as stated")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
