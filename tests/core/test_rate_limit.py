"""What a caller may ask of the API in a minute, and what strangers may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.api.requests import KNOWN
from accounts.core import rate_limit
from accounts.core.rate_limit import WINDOW_S, Buckets
from sluicegate.front.rate_limits import RateLimits


class TestBuckets:
    def test_a_full_bucket_is_spent_at_once_and_fills_in_a_minute(self) -> None:
        buckets = Buckets(60)
        assert [buckets.take("ci", 0).left for _ in range(60)] == list(range(59, -1, -1))
        refused = buckets.take("ci", 0)
        assert (refused.wait_s, refused.left, refused.full_in_s) == (1, 0, 60)
        assert buckets.take("ci", 1).wait_s == 0 and buckets.take("ci", 1).wait_s == 1
        assert buckets.take("ci", 1 + WINDOW_S).left == 59

    def test_callers_do_not_share(self) -> None:
        buckets = Buckets(1)
        assert [buckets.take(name, 0).wait_s > 0 for name in ("ci", "ci", "ada")] == [False, True, False]

    @given(
        quota=st.integers(1, 500),
        pauses=st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=300),
        cost=st.floats(0.5, 5),
    )
    def test_no_stretch_of_time_lets_more_through_than_the_quota_and_what_filled(
        self, quota: int, pauses: list[float], cost: float
    ) -> None:
        buckets, now, let_in = Buckets(quota), 0.0, 0.0
        for pause in pauses:
            now += pause
            allowed = buckets.take("ci", now, cost)
            let_in += 0 if allowed.wait_s else cost
            assert 0 <= allowed.left <= quota
            assert let_in <= quota * (1 + now / WINDOW_S) + 1e-6

    @given(quota=st.integers(1, 500), used=st.integers(1, 600))
    def test_who_waits_as_told_is_let_in(self, quota: int, used: int) -> None:
        buckets = Buckets(quota)
        waits_s = [buckets.take("ci", 5.0).wait_s for _ in range(used)]
        assert [wait_s > 0 for wait_s in waits_s] == [number >= quota for number in range(used)]
        if waits_s[-1]:
            assert buckets.take("ci", 5.0 + waits_s[-1] + 1e-6).wait_s == 0

    def test_time_that_runs_backwards_gives_nothing(self) -> None:
        buckets = Buckets(1)
        buckets.take("ci", 100)
        assert buckets.take("ci", 50).wait_s > 0

    def test_those_that_were_quiet_the_longest_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rate_limit, "MOST_CALLERS", 2)
        buckets = Buckets(1)
        for name in ("a", "b", "a", "c"):
            buckets.take(name, 0)
        assert [buckets.take(name, 0).wait_s > 0 for name in ("a", "c")] == [True, True] and len(buckets._found) == 2


#: What answers whoever asks, and what it answers.
OPEN = {"/api/v1/schema": 200, "/api/v1/nothing": 404, "/api/v1/tokens": 422, "/api/v1/tokens:exchange": 403}


class App:
    """Lets in whoever shows `good`."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        good = any(b"good" in value for _, value in scope["headers"])
        is_open = scope["path"] in OPEN
        if good and not is_open:
            dict(scope["state"])[KNOWN].append(True)  # of a copy, as the waiting have it
        await send(
            {
                "type": "http.response.start",
                "status": OPEN.get(scope["path"], 200 if good else 401),
                "headers": [(b"x", b"y")],
            }
        )
        await send({"type": "http.response.body", "body": b""})


class Door:
    """The middleware with a clock that stands still."""

    def __init__(self, per_minute: int) -> None:
        self.app, self.now = App(), 0.0
        self.limits = RateLimits(self.app, per_minute, clock=lambda: self.now)

    def ask(
        self, *, token: str = "", cookie: str = "", path: str = "/api/v1/models", peer: str = "10.0.0.9", via: str = ""
    ) -> tuple[int, dict[str, str]]:
        """(status, headers)."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        named = {"authorization": token and f"Bearer {token}", "cookie": cookie, "x-forwarded-for": via}
        headers = [(name.encode(), value.encode()) for name, value in named.items() if value]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "client": (peer, 1)}
        asyncio.run(self.limits(scope, None, send))  # type: ignore[arg-type]
        return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


class TestRateLimits:
    def test_each_answer_tells_what_is_left(self) -> None:
        door = Door(100)
        door.ask(token="good")  # as a stranger, until it is known
        status, headers = door.ask(token="good")
        assert status == 200 and headers["x"] == "y"
        assert headers["ratelimit-policy"] == '"caller";q=100;w=60' and headers["ratelimit"] == '"caller";r=99;t=1'

    def test_too_many_are_refused_with_the_time_to_wait(self) -> None:
        door = Door(100)
        statuses = [door.ask(token="good")[0] for _ in range(102)]
        assert statuses == [200] * 101 + [429]
        asked = door.app.asked
        status, headers = door.ask(token="good")
        assert (status, headers["retry-after"], headers["content-type"]) == (429, "1", "application/problem+json")
        assert door.app.asked == asked, "who is refused costs nothing behind the door"
        door.now += 1
        assert door.ask(token="good")[0] == 200

    def test_made_up_tokens_spend_what_their_address_has_and_harm_nobody_known(self) -> None:
        door = Door(1000)
        assert door.ask(token="good")[0] == 200
        statuses = [door.ask(token=f"bad{i}")[0] for i in range(20)]
        assert statuses.count(401) < 6 and statuses[-1] == 429
        assert door.ask()[0] == 429 and door.ask(peer="10.0.0.10")[0] == 401
        assert door.ask(token="good")[0] == 200

    @pytest.mark.parametrize("path", OPEN)
    def test_what_answers_everybody_makes_nobody_known(self, path: str) -> None:
        door = Door(100)  # five requests a minute for strangers
        statuses = [door.ask(token=f"bad{i % 2}", path=path)[0] for i in range(6)]
        assert statuses == [OPEN[path]] * 5 + [429] and not door.limits._known

    def test_a_caller_who_is_shut_out_is_a_stranger_again(self) -> None:
        door = Door(1000)
        door.ask(token="good")
        caller = next(iter(door.limits._known))
        door.limits._learn(caller, "10.0.0.9", 401)
        assert caller not in door.limits._known

    def test_a_session_is_a_caller_whatever_else_the_cookies_say(self) -> None:
        door = Door(100)
        door.ask(cookie="theme=dark; sessionid=good")
        _, headers = door.ask(cookie="sessionid=good; theme=light")
        assert headers["ratelimit"] == '"caller";r=99;t=1'

    @pytest.mark.parametrize("path", ["/", "/models/", "/static/web/app.css"])
    def test_pages_are_not_counted(self, path: str) -> None:
        door = Door(1)
        assert {door.ask(path=path)[0] for _ in range(5)} == {401}

    def test_parts_with_a_signed_address_are_not_counted(self) -> None:
        door = Door(1)
        path = f"/api/v1/upload-parts/{'0' * 32}/1"
        assert {door.ask(path=path)[0] for _ in range(5)} == {401}

    def test_only_our_own_proxies_are_believed(self, settings: Any) -> None:
        door = Door(20)  # one request a minute for strangers
        assert [door.ask(via=f"1.2.3.{i}")[0] for i in range(2)] == [401, 429]
        settings.PROXIES, behind = 1, Door(20)
        assert [behind.ask(via=f"6.6.6.6, 1.2.3.{i}")[0] for i in range(2)] == [401, 401]
