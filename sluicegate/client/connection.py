"""The REST API over HTTP, with problems raised as errors that can be printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from accounts.core.addresses import API
from sluicegate.client.errors import ClientError, Expired, Problem, Unreachable, is_passing, refuse
from sluicegate.client.network import Transport

#: Reads, and posts that do the same when repeated, are repeated while the server restarts; all else is sent once.
READ_TRIES, READ_PAUSE_S = 4, 0.5
#: A server that says for how long it is busy is waited for, this long at most.
LONGEST_PAUSE_S = 15.0
CHUNK_BYTES = 1 << 20
#: The code of a 401 for a token that was good before.
EXPIRED = "token_expired"


class Connection:
    """A signed-in caller of one server's API. Every method raises Problem, Unreachable or Untrusted.

    `renew` returns another token when this one has expired, as a CI job gets one for another identity token. `ca_file` holds
    CA certificates that are trusted beside the system's.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 60,
        renew: Callable[[], str] | None = None,
        ca_file: str = "",
    ) -> None:
        self.url = url.rstrip("/")
        self._renew, self._was_let_in = renew, False
        headers = {"Accept": "application/json", "User-Agent": "sluicegate-client"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self.http = httpx.Client(
                base_url=f"{self.url}{API}",
                headers=headers,
                timeout=timeout_s,
                transport=transport or Transport(ca_file=ca_file),
                trust_env=False,
            )
        except UnicodeEncodeError:
            raise refuse(
                "The token has characters that no token has.", "Run `sluicegate login`, or set SLUICEGATE_TOKEN."
            ) from None
        except httpx.InvalidURL as error:
            raise refuse(f"{url} is no address of a server: {error}.", "Write http://host:port.") from None
        parts = httpx.Timeout(60, write=300, read=300)
        self._bare = httpx.Client(
            transport=transport or Transport(ca_file=ca_file, most_connections=64), trust_env=False, timeout=parts
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

    def pages(
        self, path: str, /, *, limit: int | None = None, query: Mapping[str, Any] | None = None, **params: Any
    ) -> Iterator[dict[str, Any]]:
        """Every item of a list, page after page, or the first `limit` of them. Raises ClientError: it is no list."""
        found, address = 0, path
        params = {**(query or {}), **params}
        while address:
            page = self._again("GET", address, params=params or None)
            items = page.get("results") if isinstance(page, dict) else page
            if not isinstance(items, list):
                raise refuse(f"The answer of {path} is no list.", "Ask for it without its pages.")
            for item in items:
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

    def delete(self, path: str, *, version: int | None = None) -> None:
        self._answer(self._send("DELETE", path, headers=_if_match(version)))

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        content_type: str = "",
        if_match: str | None = None,
    ) -> Any:
        """The answer to any request: its JSON, None if it is empty, or its bytes if it is something else. It is sent once.

        `content` is a body that is no JSON, of the media type `content_type`.
        """
        headers = {"If-Match": if_match} if if_match else {}
        if content is not None:
            headers["Content-Type"] = content_type
        accept = {"Accept": "*/*"} if method == "GET" else {}
        response = self._send(method, path, params=query or None, json=body, content=content, headers=headers | accept)
        answer = self._answer(response)
        media = response.headers.get("Content-Type", "").partition(";")[0]
        if media == "text/html" and method != "GET":  # of a proxy that asks for a sign-in
            raise refuse(
                f"{self.url} answered {method} {path} with a web page, so nothing is known to be done.",
                "Name the server's own address, not that of a sign-in in front of it.",
            )
        return answer if media.endswith(("/json", "+json")) or not response.content else response.content

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
        """The address of a path, or of a link that the server wrote. The token goes to this server alone, under whatever name
        the server knows itself by."""
        if path.startswith(("http://", "https://")):
            path = httpx.URL(path).raw_path.decode()
            path = path[max(path.find(f"{API}/"), 0) :]
        if ".." in path.partition("?")[0].split("/"):
            raise refuse(f"{path} is no path of the API.", "Write it without `..`.")
        return f"{self.url}{path}" if path == API or path.startswith(f"{API}/") else path

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        if params := arguments.get("params"):  # httpx would drop the query that stands in the path
            path, _, asked = path.partition("?")
            arguments["params"] = httpx.QueryParams(asked).merge(params)
        try:
            answer = self.http.request(method, self._address(path), **arguments)
            if answer.status_code == 401 and _code(answer) == EXPIRED and self._has_another_token():
                answer = self.http.request(method, self._address(path), **arguments)
            return answer
        except httpx.TransportError as error:
            raise Unreachable(self.url, str(error) or type(error).__name__) from error
        except (ValueError, httpx.InvalidURL) as error:  # of a body that is no JSON: NaN, half a character
            raise refuse(f"Cannot send this input: {error}.", "Write finite numbers, and text in UTF-8.") from error

    def _has_another_token(self) -> bool:
        """Whether there is another token, which is used from now on. Raises what passes, such as Unreachable."""
        if self._renew is None:
            return False
        try:
            self.http.headers["Authorization"] = f"Bearer {self._renew()}"
        except ClientError as error:
            if is_passing(error):
                raise
            return False  # the caller gets the refusal of the expired token, which is the cause
        return True

    def _answer(self, response: httpx.Response) -> Any:
        body = _json(response)
        if response.is_redirect:
            where = response.headers.get("Location", "elsewhere")
            raise refuse(f"{self.url} sends this request on to {where}.", "Name the server's own address.")
        if response.status_code >= 400:
            problem = body if isinstance(body, dict) else {}
            kind = Expired if self._was_let_in and problem.get("code") == EXPIRED else Problem
            raise kind(response.status_code, problem)
        self._was_let_in = True
        return body


def _json(response: httpx.Response) -> Any:
    """The body as JSON, or None if it is none."""
    try:
        return response.json() if response.content else None
    except ValueError:
        return None


def _code(response: httpx.Response) -> str:
    body = _json(response)
    return str(body.get("code", "")) if isinstance(body, dict) else ""


def _if_match(version: int | None) -> dict[str, str] | None:
    return None if version is None else {"If-Match": f'"{version}"'}
