"""News of the log, for every open stream of this process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from django.db import connection

from audit.core.audience import Audience
from audit.core.topics import OPEN, Happening
from audit.queries import happening_of, happening_rows
from ledger.core.errors import Unavailable
from sluicegate.live import frames
from sluicegate.live.readers import Reader, is_less, with_model
from sluicegate.live.stream import Stream
from sluicegate.live.watcher import News, Watcher

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Streams of one person: one for each browser, whatever its tabs.
MOST_OF_ONE: Final = 10
#: A reader who missed more events than this reads the pages anew instead.
MOST_MISSED: Final = 1000
#: How long the first look at the log may take.
START_S: Final = 5.0
#: The watcher goes so long after the last stream: who goes from page to page leaves and comes back.
LINGER_S: Final = 30.0
#: News that are older are none.
FRESH_S: Final = 5.0


class Hub:
    """The streams of a process, all in an event loop. The watcher lives while there are streams: without readers it costs nothing."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seq = 0  # every stream has been given everything up to here
        self._streams: set[Stream] = set()
        self._readers: frozenset[Reader] = frozenset()  # of the streams; the watcher's thread reads it
        self._people_seq = 0
        self._read_at = float("-inf")
        self._news = asyncio.Event()  # set at each look, and made anew
        self._watcher: Watcher | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._queued, self._counting = 0, threading.Lock()  # questions that no thread has begun with
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="streams")

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_full(self) -> bool:
        return len(self._streams) >= self.most

    def is_full_for(self, user_id: int) -> bool:
        """Whether the person has reached the bound of streams."""
        return sum(one.reader.user_id == user_id for one in self._streams) >= MOST_OF_ONE

    @property
    def is_fresh(self) -> bool:
        """Whether the log was read just now. A stream that only repeated that it lives would be no news."""
        return self._watcher is not None and asyncio.get_running_loop().time() - self._read_at < FRESH_S

    async def join(self, reader: Reader, audience: Audience, after: int | None) -> Stream | None:
        """A new stream. It begins with the changes since the event `after`, or else with a reset.

        None when this reader may have been given, or lost, a role meanwhile: ask again who it is. Raises Unavailable.
        """
        stream = Stream(reader, audience)
        self._streams.add(stream)
        self._note_readers()
        try:
            await self._until_read()
            if self._people_seq > reader.as_of:
                self.leave(stream)
                return None
            if (
                after is not None and after > self.seq
            ):  # another process told of an event that this one has not read yet
                await self._until_read(once_more=True)
            await self._catch_up(stream, after)
        except BaseException:
            self.leave(stream)
            raise
        return stream

    async def _catch_up(self, stream: Stream, after: int | None) -> None:
        """What the stream missed; from the last comparison on nothing is awaited, so that `deliver` goes on where this ends."""
        topics: dict[str, None] = {}
        at = after if after is not None and after <= self.seq and self.seq - after <= MOST_MISSED else None
        while at is not None and at < self.seq:
            until = self.seq
            for event in await self.in_thread(_missed, at, until):
                topics |= dict.fromkeys(stream.audience.topics(event))
            at = until
        stream.put(frames.reset(self.seq) if at is None else frames.hint(topics, at) if topics else frames.beat(at))
        stream.is_caught_up = True

    def leave(self, stream: Stream) -> None:
        stream.end()
        self._streams.discard(stream)
        self._note_readers()
        if not self._streams and self._watcher is not None and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._rest)

    def stop(self) -> None:
        """Ends every stream: the browsers come back to whoever answers next. The threads end soon after."""
        for stream in tuple(self._streams):
            stream.end()
        self._rest()

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """In one of a few threads. Its database connection is closed unless more is to be asked at once, as when all come back."""
        with self._counting:
            self._queued += 1
        asked = self._threads.submit(partial(self._run, function, *arguments))
        asked.add_done_callback(self._forget_cancelled)
        return await asyncio.wrap_future(asked)

    def _forget_cancelled(self, asked: Future[Any]) -> None:
        """Who left before a thread took up the question waits no more; or else no thread would ever be the last."""
        if asked.cancelled():
            with self._counting:
                self._queued -= 1

    def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        with self._counting:
            self._queued -= 1
        has_failed = True
        try:
            answer = function(*arguments)
            has_failed = False
            return answer
        finally:
            with self._counting:
                is_last = self._queued <= 0
            if is_last or has_failed:
                connection.close()

    # --- the watcher, and its news

    async def _until_read(self, *, once_more: bool = False) -> None:
        """Until the log has been read, or read again. Raises Unavailable."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._watcher is None:
            self._watcher = self._watch()
        if self.is_fresh and not once_more:
            return
        try:
            await asyncio.wait_for(self._news.wait(), START_S)
        except TimeoutError:
            raise Unavailable("log_unreachable", "The event log cannot be read now. Come back soon.") from None

    def _watch(self) -> Watcher:
        loop = asyncio.get_running_loop()

        def deliver(news: News) -> None:
            if watcher is self._watcher:  # one that was stopped may tell of a last look, and the next one begins later
                self.deliver(news)

        def tell(news: News) -> None:
            if loop.is_closed():  # the server is gone, and nobody stopped us: a reader came in while it was ending
                watcher.stop()
            else:
                loop.call_soon_threadsafe(deliver, news)

        watcher = Watcher(lambda: self._readers, tell)
        return watcher

    def _rest(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        if self._linger is not None:
            self._linger.cancel()
        self._watcher = self._linger = None
        self._read_at = float("-inf")

    def _note_readers(self) -> None:
        self._readers = frozenset(stream.reader for stream in self._streams)

    def deliver(self, news: News) -> None:
        """Delivers a look's news, first to readers who lost access."""
        self._read_at = asyncio.get_running_loop().time()
        streams = tuple(self._streams)
        for stream in streams:
            self._settle(stream, news)
        for stream in streams:
            if stream.is_caught_up:
                self._tell(stream, news)
        self.seq = max(self.seq, news.seq)
        self._people_seq = max(self._people_seq, news.people_seq)
        self._news.set()
        self._news = asyncio.Event()

    def _settle(self, stream: Stream, news: News) -> None:
        why = news.gone.get(stream.reader)
        now = news.audiences.get(stream.reader.user_id, stream.audience)
        if why is None and is_less(now, stream.audience):
            why = frames.Why.ROLES
        if why is not None:
            stream.end(why)
        elif now != stream.audience:
            stream.audience = now
            stream.put(frames.reset(news.seq))
        for event in news.happenings:
            if event.verb == "model.created":
                stream.audience = with_model(stream.audience, event.team, event.subject_id)

    def _tell(self, stream: Stream, news: News) -> None:
        audience = stream.audience
        moved = [topic for topic, model in news.moved if topic in OPEN or audience.sees_model(model)]
        happened = [event for event in news.happenings if event.seq > self.seq]
        topics = dict.fromkeys(topic for event in happened for topic in audience.topics(event)) | dict.fromkeys(moved)
        if topics:
            stream.put(frames.hint(topics, news.seq if happened else None))


def _missed(after: int, until: int) -> list[Happening]:
    return [happening_of(row) for row in happening_rows(after, until)]
