"""A campaign that is ended before its time: it tells what it has by then, and leaves nobody behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.adapters.linux_processes import children_of
from tests.kills import campaign
from tests.kills.__main__ import _handful, _interrupted, _said
from tests.kills.campaign import Played
from tests.kills.points import Point
from tests.kills.process import fork
from tests.support.rigs.gateway_rig import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(frozen=True)
class _Waits:
    """Goes wrong at its first point, and comes to no end at any other."""

    kind: str = "waits"
    name: str = "waits, long"
    can_freeze: bool = True

    def make_template(self) -> None:
        pass

    def play(self, folder: Path, at: Point | None) -> Played:
        if at is not None and at.site != "a":
            (folder / "waiting").touch()
            signal.pause()
        return Played(trace=["a", "b"], problems=["lost"] if at else [])


def _run(folder: Path) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _interrupted)
    ours = campaign.Campaign([_Waits()], folder, lanes=2, say=lambda line: os.write(1, line.encode()))
    ours.run(campaign.every)
    found = {**campaign.report(ours), "left": len(children_of(os.getpid()))}
    (folder / "whole").write_text(json.dumps(found))


def _is_in_the_midst(folder: Path) -> bool:
    log = folder / "log"
    return (folder / "waiting").exists() and log.exists() and log.read_text().count("✗") == 2


@pytest.mark.parametrize("times", [1, 2])  # `timeout` sends it to the process, and then to its group
def test_a_campaign_that_is_terminated_tells_what_it_has(times: int, tmp_path: Path) -> None:
    child = fork("campaign", lambda: _run(tmp_path), tmp_path / "log")
    wait_until(lambda: _is_in_the_midst(tmp_path), "two runs that ended and one that does not", timeout_s=60)
    for _ in range(times):
        os.killpg(child.pid, signal.SIGTERM)
    wait_until(lambda: child.is_over, "the end of the campaign", timeout_s=60)
    assert child.exit_code == 0, (tmp_path / "log").read_text()
    found = json.loads((tmp_path / "whole").read_text())
    assert found["is_cut_off"] and found["left"] == 0
    assert [one["problems"] for one in found["wrong"]] == [["lost"], ["lost"]]
    assert found["kinds"]["waits"]["runs"] == found["not_run"] == 2


def test_after_one_that_was_cut_off_no_other_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(said: object, folder: Path, **_: object) -> int:
        said.report.write_text('{"is_cut_off": true}')  # type: ignore[attr-defined]
        return 1

    file = tmp_path / "kills.json"
    monkeypatch.setattr("tests.kills.__main__._campaign", cut_off)
    monkeypatch.setattr(sys, "argv", ["tests.kills", "--handful", "1", "--report", str(file)])
    assert _handful(_said(), tmp_path) == 1
    assert set(json.loads(file.read_text())) == {"killed"}
