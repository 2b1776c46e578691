"""The REST API over HTTP, with problems raised as errors that can be printed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from accounts.core.addresses import API
from sluicegate.client.errors import Problem, Unreachable, refuse

#: Reads, and posts that do the same when repeated, are repeated while the server restarts; all else is sent once.
READ_TRIES, READ_PAUSE_S = 4, 0.5
#: A server that says for how long it is busy is waited for, this long at most.
LONGEST_PAUSE_S = 15.0
CHUNK_BYTES = 1 << 20


class Connection:
    """A signed-in caller of one server's API. Every method raises Problem or Unreachable."""

    def __init__(
        self, url: str, token: str = "", *, transport: httpx.BaseTransport | None = None, timeout_s: float = 60
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"Accept": "application/json", "User-Agent": "sluicegate-client"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self.http = httpx.Client(
                base_url=f"{self.url}{API}", headers=headers, timeout=timeout_s, transport=transport, trust_env=False
            )
        except UnicodeEncodeError:
            raise refuse(
                "The token has characters that no token has.", "Run `sluicegate login`, or set SLUICEGATE_TOKEN."
            ) from None
        except httpx.InvalidURL as error:
            raise refuse(f"{url} is no address of a server: {error}.", "Write http://host:port.") from None
        parts = httpx.Timeout(60, write=300, read=300)
        self._bare = httpx.Client(
            transport=transport, trust_env=False, timeout=parts, limits=httpx.Limits(max_connections=64)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()
        self._bare.close()

    def get(self, path: str, **params: Any) -> Any:
        return self._again("GET", path, params=params or None)

    def post_again(self, path: str, body: Any = None) -> Any:
        """A post that changes nothing more when it is repeated."""
        return self._again("POST", path, json={} if body is None else body)

    def _again(self, method: str, path: str, **arguments: Any) -> Any:
        for attempt in range(READ_TRIES):
            try:
                return self._answer(self._send(method, path, **arguments))
            except (Unreachable, Problem) as error:
                if attempt == READ_TRIES - 1 or getattr(error, "status", 503) not in {429, 502, 503, 504}:
                    raise
                time.sleep(max(READ_PAUSE_S, min(LONGEST_PAUSE_S, error.facts.get("retry_after_s", 0))))
        raise AssertionError("the last try raised or returned")

    def pages(self, path: str, *, limit: int | None = None, **params: Any) -> Iterator[dict[str, Any]]:
        """Every item of a list, page after page, or the first `limit` of them."""
        found, address = 0, path
        while address:
            page = self.get(address, **params)
            for item in page["results"] if isinstance(page, dict) else page:
                yield item
                found += 1
                if limit is not None and found >= limit:
                    return
            address, params = (page.get("next") or "") if isinstance(page, dict) else "", {}

    def post(self, path: str, body: Any = None, *, version: int | None = None, is_any_version: bool = False) -> Any:
        headers = {"If-Match": "*"} if is_any_version else _if_match(version)
        return self._answer(self._send("POST", path, json={} if body is None else body, headers=headers))

    def create(self, path: str, body: Any) -> tuple[Any, bool]:
        """The answer, and whether the server made it just now (201) rather than found it (200)."""
        response = self._send("POST", path, json=body)
        return self._answer(response), response.status_code == 201

    def post_bytes(self, path: str, data: bytes, *, content_type: str) -> Any:
        return self._answer(self._send("POST", path, content=data, headers={"Content-Type": content_type}))

    def patch(self, path: str, body: Any, *, version: int | None = None) -> Any:
        return self._answer(self._send("PATCH", path, json=body, headers=_if_match(version)))

    def put(self, path: str, body: Any, *, version: int | None = None) -> Any:
        return self._answer(self._send("PUT", path, json=body, headers=_if_match(version)))

    def delete(self, path: str, *, version: int | None = None) -> None:
        self._answer(self._send("DELETE", path, headers=_if_match(version)))

    def put_part(self, url: str, chunks: Iterator[bytes], *, size_bytes: int, headers: Mapping[str, str]) -> int:
        """The status that a signed address answers to its part. The token stays here: the address is permission enough.

        Raises Unreachable. Threads may share it.
        """
        headers = {**headers, "Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        try:
            return self._bare.put(url, content=chunks, headers=headers).status_code
        except httpx.TransportError as error:
            raise Unreachable(url.partition("?")[0], str(error) or type(error).__name__) from error

    def stream(self, path: str) -> Iterator[bytes]:
        """The bytes of a file, in chunks."""
        try:
            with self.http.stream("GET", self._address(path)) as response:
                if response.status_code >= 400:
                    response.read()
                    self._answer(response)
                yield from response.iter_bytes(CHUNK_BYTES)
        except httpx.TransportError as error:
            raise Unreachable(self.url, str(error) or type(error).__name__) from error

    def _address(self, path: str) -> str:
        # absolute addresses come from `next` links and run URLs
        if path.startswith(("http://", "https://")):
            return path
        return path if not path.startswith(API) else f"{self.url}{path}"

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            return self.http.request(method, self._address(path), **arguments)
        except httpx.TransportError as error:
            raise Unreachable(self.url, str(error) or type(error).__name__) from error
        except (ValueError, httpx.InvalidURL) as error:  # of a body that is no JSON: NaN, half a character
            raise refuse(
                f"What was given cannot be sent: {error}.", "Write finite numbers, and text in UTF-8."
            ) from error

    @staticmethod
    def _answer(response: httpx.Response) -> Any:
        try:
            body = response.json() if response.content else None
        except ValueError:
            body = None
        if response.status_code >= 400:
            raise Problem(response.status_code, body if isinstance(body, dict) else {})
        return body


def _if_match(version: int | None) -> dict[str, str] | None:
    return None if version is None else {"If-Match": f'"{version}"'}
