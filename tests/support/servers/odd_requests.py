"""Requests whose heads and frames a gateway and a server may read differently, and questions: for most of them no model runs.

Each shape is a way to make failures, or good attempts, at will if the two parsers disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.rigs.gateway_rig import MODEL
from tests.support.servers.hostile import GOOD, field_of, good_message
from tests.support.servers.raw_requests import Head, grpc_head, message_of, over_h2, over_http

_INFER = f"/v2/models/{MODEL}/infer"
_SERVICE = "/inference.GRPCInferenceService"
_CALL = f"{_SERVICE}/ModelInfer"
_JSON = ("content-type", "application/json")


@dataclass(frozen=True)
class OddRequest:
    name: str
    head: Head
    body: bytes
    path: str = ""  # of HTTP/1.1; an HTTP/2 request has it in its head
    method: str = "POST"

    def send(self, port: int) -> None:
        if self.path:
            over_http(port, self.path, self.head, self.body, method=self.method)
        else:
            over_h2(port, self.head, self.body)


def over_http1() -> Iterator[OddRequest]:
    def odd(
        name: str, *head: tuple[str, str], path: str = _INFER, body: bytes = GOOD, method: str = "POST"
    ) -> OddRequest:
        return OddRequest(f"HTTP: {name}", list(head) or [_JSON], body, path, method)

    types = ("", "+proto", "; x", "-web", "-web+proto", "x")
    yield from (odd(f"application/grpc{one}", ("content-type", f"application/grpc{one}")) for one in types)
    yield odd("Application/GRPC", ("content-type", "Application/GRPC"))
    yield odd("two content types", _JSON, ("content-type", "application/grpc"))
    for size in (7000, 8100, 8150, 8180, 8190, 8200, 8300, 12_000, 30_000):
        yield odd(f"URL of {size}", path=f"{_INFER}?{'a' * (size - len(_INFER) - 1)}")
        yield odd(f"line of {size}", _JSON, ("x-a", "a" * size))
        yield odd(f"name of {size}", _JSON, ("x" * size, "a"))
    yield from (odd(f"{n} lines of 1,000", _JSON, *((f"x-{i}", "a" * 1000) for i in range(n))) for n in (7, 8, 24))
    yield from (odd(f"{n} lines", _JSON, *((f"x-{i}", "a") for i in range(n))) for n in (80, 95, 120))
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"):
        yield odd(method, method=method, body=b"" if method in ("GET", "HEAD") else GOOD)
    for body in (b"", b"null", b"[]", b"{}", b"1", b"\0"):
        yield odd(f"body {body!r}", body=body)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    for coding in ("chunked", "gzip, chunked", "identity", "gzip", "chunked, chunked", "bogus"):
        yield odd(f"transfer-encoding: {coding}", _JSON, ("transfer-encoding", coding), body=chunked)
    lines = [
        ("expect", "100-continue"), ("expect", "bogus"), ("accept-encoding", "bogus"), ("accept-encoding", "gzip"),
        ("accept-encoding", "identity;q=0"), ("accept", "bogus"), ("te", "trailers"), ("te", "bogus"), ("x-bin", "@@@"),
        ("grpc-timeout", "1m"), ("grpc-encoding", "bogus"), ("grpc-status", "13"), ("x", "\x80\xff"), ("x", ""),
        ("upgrade", "websocket"), ("upgrade", "h2c"), ("content-encoding", ""), ("traceparent", "bogus"),
        ("endpoint-load-metrics-format", "bogus"), ("x-envoy-upstream-rq-timeout-ms", "1"), ("range", "bytes=0-1"),
        ("x-envoy-upstream-rq-per-try-timeout-ms", "1"), ("content-length", str(len(GOOD) - 1)),
    ]  # fmt: skip
    yield from (odd(f"{name}: {value!r}", _JSON, (name, value)) for name, value in lines)
    for length in ("0", "1", "5", str(len(GOOD)), str(len(GOOD) - 1), "0" * 26 + str(len(GOOD)), "0x1", "+3"):
        yield odd(f"JSON of {length}", _JSON, ("inference-header-content-length", length))
    for version in ("0", "1", "2", "-1", "x", "9" * 20, "1e3", "%31", "1.0"):
        yield odd(f"version {version}", path=f"/v2/models/{MODEL}/versions/{version}/infer")
    ends = ("/infer/", "/infer;x", "/infer?", "/infer?a=b", "/%69nfer", "/infer%20", "/infer%00", "/INFER", "//infer",
            "/./infer", "/infer?%", "/generate", "/generate_stream")  # fmt: skip
    yield from (odd(f"path {end}", path=f"/v2/models/{MODEL}{end}") for end in ends)
    for question in ("", "/ready", "/config", "/stats"):
        yield odd(f"question {question}", path=f"/v2/models/{MODEL}{question}", method="GET", body=b"")
        yield odd(f"question {question} by POST", path=f"/v2/models/{MODEL}{question}")


def over_http2() -> Iterator[OddRequest]:
    good = good_message(MODEL)
    usual = message_of(good)
    named = ("x-sluicegate-model", MODEL)

    def odd(name: str, *more: tuple[str, str], body: bytes = usual, without: tuple[str, ...] = ()) -> OddRequest:
        return OddRequest(f"gRPC: {name}", grpc_head(_CALL, *more, without=without), body)

    yield odd("good")
    yield odd("no te", without=("te",))
    yield from (odd(f"te: {one}", ("te", one)) for one in ("gzip", "trailers, gzip", "TRAILERS", "bogus"))
    for coding in ("bogus", "gzip", "deflate", "identity", "", "snappy", "identity, gzip"):
        yield odd(f"grpc-encoding: {coding}", ("grpc-encoding", coding))
        yield odd(f"grpc-accept-encoding: {coding}", ("grpc-accept-encoding", coding))
    values = ("@@@@", "a", "AAAA", "AAA=", "AAA", "AA==", "A===", "", "AAAA,BBBB", "AA A", "-_-_", "AAAAA", "AA=A",
              "\x80", "AAB", "AB", "abc==")  # fmt: skip
    for name in ("x-bin", "grpc-trace-bin", "grpc-tags-bin", "-bin"):
        yield from (odd(f"{name}: {value!r}", (name, value)) for value in values)
    yield from (
        odd(f"metadata of {size}", ("x-a", "a" * size)) for size in (6000, 7000, 8000, 8200, 9000, 16_000, 30_000)
    )
    yield from (odd(f"{n} lines of 60", *((f"x-{i}", "a" * 60) for i in range(n))) for n in (40, 60, 80, 88))
    yield from (odd(f"name of {size}", ("x" * size, "a")) for size in (7000, 8000, 9000))
    yield from (odd(f"content type {one}", ("content-type", one)) for one in (
        "application/grpc+proto", "application/grpc+json", "application/grpc;x", "application/grpcx", "application/json",
        "application/grpc-web", "Application/grpc", "application/grpc+",
    ))  # fmt: skip
    yield from (odd(method, (":method", method)) for method in ("GET", "PUT", "OPTIONS", "HEAD", "FOO"))
    for path in (f"{_CALL}?x", f"{_CALL}?", f"{_CALL}/", f"{_CALL};x", f"{_CALL}%20", f"{_SERVICE}/%4dodelInfer",
                 f"/{_CALL}", f"{_SERVICE}//ModelInfer", f"{_SERVICE}/modelinfer"):  # fmt: skip
        yield odd(f"path {path}", (":path", path), named)
    frames = {
        "nothing": b"",
        "4 bytes": usual[:4],
        "no message": message_of(b""),
        "two messages": usual + usual,
        "a length too short": message_of(good, 0, len(good) - 3),
        "a length too long": message_of(good, 0, len(good) + 3),
        "a version that is not there": message_of(good + field_of(2, b"7")),
        "bad UTF-8": message_of(good + field_of(3, b"\xff")),
        "a field of another type": message_of(b"\x08\x01"),
        **{f"flag {one}": message_of(good, one) for one in (1, 2, 255)},
    }
    yield from (odd(name, named, body=body) for name, body in frames.items())
    for timeout in ("abc", "1", "-1S", "99999999999S", "", "S", "1X", "1.5S", "5S", "999999999n"):
        yield odd(f"grpc-timeout: {timeout}", ("grpc-timeout", timeout))
    lines = [
        ("x", "\x80\xff"), ("x", "a\tb"), ("x_y", "a"), ("x.y", "a"), ("expect", "100-continue"), ("grpc-status", "13"),
        ("grpc-previous-rpc-attempts", "abc"), ("grpc-retry-pushback-ms", "x"), ("grpc-internal-encoding-request", "bogus"),
        ("grpc-message", "%zz"), ("lb-cost-bin", "@"), ("endpoint-load-metrics-bin", "AAAA"), ("content-encoding", "gzip"),
        ("user-agent", "\x80"), ("triton_grpc_error", "true"), ("grpc-foo", "y"), ("x-envoy-upstream-rq-timeout-ms", "1"),
    ]  # fmt: skip
    yield from (odd(f"{name}: {value!r}", (name, value)) for name, value in lines)
    for call in ("Ready", "Metadata", "Config", "Statistics"):
        path = (":path", f"{_SERVICE}/Model{call}")
        yield odd(f"question {call}", path, body=message_of(field_of(1, MODEL.encode())))
        yield odd(f"question {call} that is no message", path, named, body=message_of(b"\xff\xff"))


def in_a_hurry() -> Iterator[OddRequest]:
    """Calls with a deadline that no release must keep."""
    for timeout in ("1n", "1u", "1m", "0S", "00000000S", "2m"):
        head = grpc_head(_CALL, ("grpc-timeout", timeout))
        yield OddRequest(f"gRPC: grpc-timeout: {timeout}", head, message_of(good_message(MODEL)))
