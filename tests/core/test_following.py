"""Up to when a gateway follows, by what it was sent and what it answered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from serving.traffic.control_plane.flights import Flights, Sent
from serving.traffic.control_plane.following import Following
from serving.traffic.control_plane.protos import ENDPOINTS

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


class Line:
    def __init__(self) -> None:
        self.flights, self.following = Flights(), Following()

    def send(self) -> str:
        return self.flights.begin(Sent(ENDPOINTS, {"a": "1"}, 0.0))

    def look(self, seconds: int, *unsent: str, is_told: bool = True) -> datetime | None:
        return self.following.look(at(seconds), self.flights, {*unsent}, is_told=is_told)


def test_with_nothing_on_its_way_it_follows_what_was_read_last() -> None:
    line = Line()
    assert line.look(1) == at(1)
    assert line.look(2) == at(2)
    assert line.look(3, is_told=False) == at(2)


def test_it_follows_once_what_was_sent_by_then_is_answered_however_much_is_sent_meanwhile() -> None:
    line = Line()
    first = line.send()
    assert line.look(1) is None
    for second in range(2, 50):  # never without a response on its way
        later = line.send()
        assert line.look(second) == (at(second - 2) if second > 2 else None)
        line.flights.end(first)
        assert line.look(second) == at(second - 1)
        first = later


def test_answers_that_come_in_another_order_are_waited_for_too() -> None:
    line = Line()
    first, second = line.send(), line.send()
    assert line.look(1) is None
    line.flights.end(second)
    assert line.look(2) is None
    line.flights.end(first)
    assert line.look(3) == at(3)


def test_models_that_wait_for_their_turn_are_waited_for_and_those_that_come_after_them_are_not() -> None:
    line = Line()
    assert line.look(1, "a", "b") is None
    first = line.send()  # of a
    assert line.look(2, "b", "c") is None
    second = line.send()  # of b
    assert line.look(3, "c") is None
    line.flights.end(first)
    assert line.look(4, "c", "a") is None
    line.flights.end(second)
    assert line.look(5, "c", "a") == at(1)
    assert line.look(6, "a") == at(1)  # the next mark waits for both
    assert line.look(7, "d") == at(5)


def test_a_refusal_spoils_what_was_waited_for() -> None:
    line = Line()
    first = line.send()
    assert line.look(1) is None
    line.flights.end(first)
    line.following.spoil()
    assert line.look(2, is_told=False) is None
    assert line.look(3) == at(3)
