"""How long open pages take to show that a model lost its servers or its gateway, on a local stack in a real browser.

Run `python -m benchmarks.outage_pages [--rounds N] [--out FILE]`; about a minute for each round. A model is promoted and asked
25 times a second while its overview, model and fleet page stand open. Then parts of the stack are broken. The stopwatch begins
with the signal. A page *shows* it when its text does not call the model well, no element has the colour of what is well, its
title begins with ✕ and the navigation has a red badge. A stopped gateway is no trouble of a node, so the fleet page is not timed
there, and its servers still answer their agent. Then the parts are continued, and the time until the model is healthy again counts.

The exit code is 1 if a page took longer than MOST_S.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
from playwright.sync_api import Page

from sluicegate.stack import Stack, running
from tests.flows.tiny import MODEL, Shop, Users, password_of
from tests.support.rigs import browser_rig
from tests.support.rigs.browser_rig import GOOD, GREEN, TEXT

#: Promised for every open page, in seconds.
MOST_S = 10.0
PAGES = {"overview": "/", "model": f"/models/{MODEL}/", "fleet": "/fleet/"}
_LOOK_EVERY_S, _WORST_S = 0.1, 120.0
#: Between two scenes, in seconds. Pages do not fetch a costly part again within 5 s.
_CALM_S = 6.0


@dataclass(frozen=True)
class Scene:
    """A fault. `freezes`: processes of the stack that get SIGSTOP; `kills_servers`: the serving processes get SIGKILL.
    `good`: words that no page in `pages` may show during the fault."""

    name: str
    freezes: tuple[str, ...]
    pages: tuple[str, ...]
    good: re.Pattern[str]
    kills_servers: bool = False


SCENES = (
    Scene("agent stopped, server killed", ("agent",), tuple(PAGES), GOOD, kills_servers=True),
    Scene("gateway stopped", ("envoy",), ("overview", "model"), re.compile(r"\bhealthy\b")),
)


@dataclass
class Times:
    """Seconds from the signal until each page showed it, for each round; and until the model was healthy again."""

    scene: Scene
    shown: dict[str, list[float]] = field(default_factory=dict)
    healed: list[float] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for name, seconds in {**self.shown, "healthy again": self.healed}.items():
            yield f"| {self.scene.name} | {name} | {median(seconds):.1f} | {max(seconds):.1f} |"


def server_pids(stack: Stack) -> list[int]:
    with psycopg.connect(stack.database_url, autocommit=True) as session:
        rows = session.execute("SELECT pid FROM serving_server WHERE ended_at IS NULL AND pid > 0")
        return [int(pid) for (pid,) in rows]


@contextmanager
def broken(stack: Stack, scene: Scene) -> Iterator[None]:
    frozen = [stack.pid_of(name) for name in scene.freezes]
    try:
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        for pid in server_pids(stack) if scene.kills_servers else ():
            os.kill(pid, signal.SIGKILL)
        yield
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def shows_it(page: Page, good: re.Pattern[str]) -> bool:
    has_good = bool(good.search(page.evaluate(TEXT))) or page.evaluate(GREEN) != []
    has_badge = page.locator("#main-links .badge.bad").count() > 0
    return not has_good and has_badge and page.title().startswith("✕ ")


def is_well(page: Page) -> bool:
    return page.locator("main .word.ok", has_text="healthy").count() > 0 and not page.title().startswith("✕")


def seconds_until(began: float, pages: dict[str, Page], holds: Callable[[Page], bool]) -> dict[str, float]:
    """For each page, when it first held, in seconds since `began`. Raises TimeoutError."""
    found: dict[str, float] = {}
    while len(found) < len(pages):
        if time.monotonic() - began > _WORST_S:
            texts = {
                name: page.locator("main").inner_text()[:2000] for name, page in pages.items() if name not in found
            }
            raise TimeoutError(f"After {_WORST_S:g} s these pages do not show it: {texts}")
        for name, page in pages.items():
            if name not in found and holds(page):
                found[name] = time.monotonic() - began
        time.sleep(_LOOK_EVERY_S)
    return found


def promoted(shop: Shop, users: Users) -> None:
    name = shop.prove("one")
    rollout = shop.start(name)
    shop.until_acknowledged(rollout)
    users.begin()
    shop.until(rollout, "promoted")


def opened(until_the_end: ExitStack, stack: Stack) -> dict[str, Page]:
    """The pages, each in a tab of its own, of a person who signed in."""
    browser = until_the_end.enter_context(browser_rig.chromium())
    context, _ = browser_rig.new_context(browser, stack.base_url.replace("127.0.0.1", "localhost"))
    until_the_end.callback(context.close)
    first = context.new_page()
    first.goto("/")
    first.get_by_label("User name").fill("mara")
    first.get_by_label("Password").fill(password_of("mara"))
    first.get_by_role("button", name="Sign in", exact=True).click()
    first.get_by_role("heading", level=1, name="Overview").wait_for()
    pages = {name: context.new_page() for name in PAGES}
    for name, page in pages.items():
        page.goto(PAGES[name])
        page.locator("body[data-live-state=live]").wait_for()
    return pages


def measured(rounds: int) -> list[Times]:
    table = [Times(scene) for scene in SCENES]
    with ExitStack() as until_the_end:
        folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="sluicegate-outage-")))
        stack = until_the_end.enter_context(running(folder / "state"))
        shop = until_the_end.enter_context(Shop(stack, folder, step_s=1))
        users = until_the_end.enter_context(Users(stack, begins=False))
        promoted(shop, users)
        pages = opened(until_the_end, stack)
        healthy = {name: pages[name] for name in ("overview", "model")}
        seconds_until(time.monotonic(), healthy, is_well)
        for _ in range(rounds):
            for times in table:
                with broken(stack, times.scene):
                    began = time.monotonic()
                    watched = {name: pages[name] for name in times.scene.pages}
                    shown = seconds_until(began, watched, partial(shows_it, good=times.scene.good))
                    for name, seconds in shown.items():
                        times.shown.setdefault(name, []).append(seconds)
                    print(
                        times.scene.name, {name: round(kept[-1], 1) for name, kept in times.shown.items()}, flush=True
                    )
                healed = seconds_until(time.monotonic(), healthy, is_well)
                times.healed.append(max(healed.values()))
                time.sleep(_CALM_S)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the table there")
    asked = parser.parse_args()
    table = measured(asked.rounds)
    lines = [
        "| broken | page | median, s | most, s |",
        "|---|---|---|---|",
        *(one for row in table for one in row.lines()),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.out:
        asked.out.write_text(text)
    return int(any(max(seconds) > MOST_S for times in table for seconds in times.shown.values()))


if __name__ == "__main__":
    sys.exit(main())
