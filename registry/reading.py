"""A blob's bytes from end to end, as fast as they can be had: pieces are fetched ahead while the one before is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from registry.storage import BlobStore

#: A few pieces ahead hide the store's delay and use several connections; memory stays at AHEAD pieces.
PIECE_BYTES, AHEAD = 4 << 20, 4


def in_order(keys: BlobStore, key: str, size_bytes: int) -> Iterator[bytes]:
    """Everything under the key, in order, in pieces; also what lies beyond `size_bytes`. Raises what the store raises."""
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="reading") as pool:
        waiting = deque[Future[bytes]]()
        starts = iter(range(0, max(size_bytes, 1), PIECE_BYTES))
        end = -(-max(size_bytes, 1) // PIECE_BYTES) * PIECE_BYTES
        try:
            for start in starts:
                waiting.append(pool.submit(keys.read_range, key, start, PIECE_BYTES))
                if len(waiting) >= AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()
    if beyond := keys.read_range(key, end, PIECE_BYTES):
        yield beyond
