"""Who waits for the end of something is kept without Django's help, and asked for anew until the answer is another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluicegate.front import waits
from sluicegate.front.waits import WaitMiddleware

PATH = "/api/v1/rollouts/5/wait"


class App:
    """Answers with these statuses, one after another; the last one stays."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert await receive() == {"type": "http.request", "body": b"", "more_body": False}
        self.asked += 1
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": str(self.asked).encode()})


async def no_pause() -> None:
    await asyncio.sleep(0)


async def ask(
    middleware: WaitMiddleware,
    *,
    path: str = PATH,
    query: str = "",
    method: str = "GET",
    leaves: Any = None,
    token: str = "",
) -> Any:
    """(status, body), or None where nothing was answered. The caller goes away when the event `leaves` is set."""
    answer: list[Any] = []
    first = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        for message in first:
            return message
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answer.append(message)

    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    scope["headers"] = [(b"authorization", token.encode())] if token else []
    await asyncio.wait_for(middleware(scope, receive, send), 60)
    return (answer[0]["status"], answer[1]["body"]) if answer else None


def test_the_caller_is_kept_until_it_has_come() -> None:
    app = App(202, 202, 202, 200)
    assert asyncio.run(ask(WaitMiddleware(app, no_pause))) == (200, b"4")


def test_once_the_time_is_over_it_is_told_how_things_stand() -> None:
    app = App(202)
    status, body = asyncio.run(ask(WaitMiddleware(app, asyncio.Event().wait), query="timeout_s=0.05"))  # type: ignore[arg-type]
    assert status == 202 and body == b"2"  # asked at first, and at the end of the time


@pytest.mark.parametrize("query", ["timeout_s=0", "timeout_s=-1", "timeout_s=nan", "timeout_s=soon", "timeout_s=56"])
def test_no_time_and_no_number_are_djangos_to_answer(query: str) -> None:
    app = App(202)
    assert asyncio.run(ask(WaitMiddleware(app, no_pause), query=query)) == (202, b"1")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", PATH), ("GET", "/api/v1/rollouts/5"), ("GET", "/rollouts/5/wait"), ("GET", f"{PATH}/")],
)
def test_every_other_request_passes(method: str, path: str) -> None:
    app = App(202)
    assert asyncio.run(ask(WaitMiddleware(app, no_pause), method=method, path=path)) == (202, b"1")


def test_who_lost_the_right_meanwhile_is_told_so() -> None:
    assert asyncio.run(ask(WaitMiddleware(App(202, 401), no_pause))) == (401, b"2")


def test_who_leaves_is_not_asked_for_any_more() -> None:
    async def run() -> Any:
        app, leaves = App(202), asyncio.Event()
        middleware = WaitMiddleware(app, asyncio.Event().wait)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(ask(middleware, leaves=leaves))
        while not app.asked:
            await asyncio.sleep(0)
        assert middleware.kept == 1
        leaves.set()
        return await asking, app.asked, middleware.kept

    assert asyncio.run(run()) == (None, 1, 0)


def test_beyond_the_bound_nobody_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MOST_KEPT", 0)
    assert asyncio.run(ask(WaitMiddleware(App(202), no_pause))) == (202, b"1")


def test_one_caller_does_not_take_the_places_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "MOST_KEPT_OF_ONE", 2)

    async def run() -> Any:
        app, leaves = App(202), asyncio.Event()
        middleware = WaitMiddleware(app, asyncio.Event().wait)  # type: ignore[arg-type]
        asking = [asyncio.ensure_future(ask(middleware, leaves=leaves, token="a")) for _ in range(2)]
        while app.asked < 2:
            await asyncio.sleep(0)
        third = await ask(middleware, token="a")
        asking.append(asyncio.ensure_future(ask(middleware, leaves=leaves, token="b")))
        while app.asked < 4:
            await asyncio.sleep(0)
        kept = middleware.kept
        leaves.set()
        return third, kept, await asyncio.gather(*asking), middleware.kept, dict(middleware._kept)

    assert asyncio.run(run()) == ((202, b"3"), 3, [None] * 3, 0, {})
