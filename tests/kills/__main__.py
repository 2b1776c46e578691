"""`python -m tests.kills`: kills processes at their writes and says whether everything came right again.

python -m tests.kills --all                  every point of every story
python -m tests.kills --seed 7               each site once on each side, drawn by the seed
python -m tests.kills --only engine --freeze the engine frozen, not killed, until another has led
"""

# ruff: noqa: T201 - it talks to a terminal
from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    said = _said()
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGINT, _interrupted)
    from tests.kills.databases import stores

    with stores() as folder:
        import django

        django.setup()
        from tests.kills import databases

        databases.make_base()
        if said.takeover:
            return _takeover(said, folder)
        return _handful(said, folder) if said.handful else _campaign(said, folder)


def _interrupted(*_: object) -> None:
    """Once: what is done by then is told, and the stores are put away, whatever is sent after it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _said() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every point, not a sample of them")
    parser.add_argument("--seed", type=int, default=1, help="draws the sample")
    parser.add_argument("--extra", type=int, default=0, help="so many points more than one for each side of a site")
    parser.add_argument("--only", default="", help="victims whose name holds this text, or one of several with |")
    parser.add_argument("--stories", type=int, default=10**9, help="no more stories of a kind of victim than these")
    parser.add_argument(
        "--changed", action="store_true", help="first the sites in modules that differ from the commit before the last"
    )
    parser.add_argument(
        "--freeze", action="store_true", help="freeze the victim and let it go on after another took over"
    )
    parser.add_argument("--site", default="", help="only sites that hold this text, or one of several with | between")
    parser.add_argument("--times", type=int, default=1, help="each run so often")
    parser.add_argument(
        "--torn", action="store_true", help="kill those whose transactions or files are broken: this must go wrong"
    )
    parser.add_argument(
        "--most", type=int, default=10**9, help="no more runs of a kind of victim than these, the first ones drawn"
    )
    parser.add_argument(
        "--handful", type=int, default=0, help="so many of each kind killed, as many frozen, and broken ones"
    )
    parser.add_argument("--sites", action="store_true", help="list every site")
    parser.add_argument(
        "--takeover", type=int, default=0, help="kill the leader of two engines so often, freeze it once"
    )
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1, help="so many runs at a time")
    parser.add_argument("--report", type=Path, help="write the numbers there as JSON")
    return parser.parse_args()


def _takeover(said: argparse.Namespace, folder: Path) -> int:
    from tests.kills import takeover

    pair = takeover.Pair(folder)
    try:
        found = takeover.kill_leaders(pair, said.takeover, seed=said.seed).to_json()
        found["frozen_wrote"] = takeover.freeze_leader(pair)
    finally:
        pair.end()
    if said.report:
        said.report.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    return 1 if found["frozen_wrote"] else 0


#: How a campaign ends that has nobody to kill.
NOBODY = 2
#: The sites that find torn writes: moves of rollouts and replicas, a gateway's drain, and the file.
TORN_SITES = "@ rollouts.actions.transitions|append_event < append_replica < _move|_written < drain_gateway|@ in_place"
TORN = {"torn": True, "site": TORN_SITES, "most": 10**9, "changed": False, "seed": 1}


def _handful(said: argparse.Namespace, folder: Path) -> int:
    """All three campaigns, each in its part of the report; what was recorded undisturbed serves those that kill and freeze. One that
    has nobody, as where no such victim can be frozen, has no part; whether all came right rests on the others."""
    most = {"most": said.handful, "extra": 0}
    recorded: dict[str, Any] = {"undisturbed": {}, "points": {}}
    found = {}
    for name, over in {"killed": {"extra": said.handful}, "frozen": {"freeze": True}, "torn": TORN}.items():
        print(f"--- {name}", flush=True)
        mine = argparse.Namespace(**{**vars(said), **most, **over, "report": folder / name})
        code = _campaign(mine, folder, **({} if mine.torn else recorded))
        if code == NOBODY:
            if name == "killed":
                return NOBODY
            continue
        found[name] = {**json.loads(mine.report.read_text()), "code": code}
        if found[name]["is_cut_off"]:
            break
    if said.report:
        said.report.write_text(json.dumps(found, indent=1))
    return max(one["code"] for name, one in found.items() if name != "torn")


def _campaign(said: argparse.Namespace, folder: Path, **recorded: Any) -> int:
    from tests.kills import campaign as campaigns
    from tests.kills.victims import torn, victims

    names = said.only.split("|")
    named = [victim for victim in (torn() if said.torn else victims()) if any(name in victim.name for name in names)]
    chosen = [victim for victim in named if victim.can_freeze or not said.freeze]
    if not chosen:
        kinds = " or ".join(sorted({victim.kind for victim in named}))
        none = f"No {'broken ' if said.torn else ''}victim has {said.only!r} in its name."
        print(f"No {kinds} can be frozen." if kinds else none, file=sys.stderr)
        return NOBODY
    chosen = campaigns.some(chosen, said.seed, said.stories)
    campaign = campaigns.Campaign(
        chosen, folder, lanes=said.lanes, say=lambda line: print(line, flush=True), **recorded
    )
    pick = campaigns.every if said.all else campaigns.sample(said.seed, chosen, said.extra)

    def choose(points: campaigns.PointsOf) -> list[campaigns.Target]:
        texts = said.site.split("|")
        picked = pick(
            {name: [one for one in its if any(text in one.site for text in texts)] for name, its in points.items()}
        )
        picked = campaigns.changed_first(picked, changed_modules() if said.changed else ())
        picked = campaigns.frozen(picked) if said.freeze else picked
        return campaigns.first_of_each_kind(picked, chosen, said.most) * said.times

    campaign.run(choose)
    found = campaigns.report(campaign)
    if said.report:
        said.report.write_text(json.dumps(found, indent=1))
    if said.sites:
        print(campaigns.by_site(campaign))
    print(campaigns.table(found))
    print(f"{len(found['wrong'])} wrong; {found['took_s']:g} s")
    if found["is_cut_off"]:
        print(f"Cut off: {found['not_run']} of {len(campaign.chosen)} runs were not done.", file=sys.stderr)
    missed = campaigns.missed(found)
    print("\n".join(missed), file=sys.stderr)
    return 1 if found["wrong"] or missed or found["is_cut_off"] else 0


def changed_modules() -> list[str]:
    """What differs from the commit before the last: the last commit and what is not committed yet. None without git."""
    if not shutil.which("git"):
        return []
    argv = ["git", "diff", "--name-only", "HEAD~1", "--", "*.py"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in said.split()]


if __name__ == "__main__":
    sys.exit(main())
