"""What a process keeps of its last answers, for as long as what they rest on stays as it was."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")
_all: weakref.WeakSet[Kept[Any]] = weakref.WeakSet()


class Kept(Generic[V]):
    """The last value of each of `most` keys, those that were asked for longest ago going first. For many threads at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Hashable, V]] = OrderedDict()
        _all.add(self)

    def of(self, key: Hashable, rests_on: Hashable, make: Callable[[], V]) -> V:
        """The key's value, made anew where it rests on something else than the last one. What `make` raises is not kept."""
        with self._lock:
            known = self._values.get(key)
        value = known[1] if known is not None and known[0] == rests_on else make()
        with self._lock:
            self._values[key] = rests_on, value
            self._values.move_to_end(key)
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        return value

    def forget(self) -> None:
        with self._lock:
            self._values.clear()


def forget_all() -> None:
    """What a first look costs can be measured after this."""
    for one in _all:
        one.forget()
