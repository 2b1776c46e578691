"""Requests as no library sends them: HTTP/1.1 and HTTP/2 byte by byte, to a gateway on this machine."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import BinaryIO

#: A head in order, duplicates and all.
Head = list[tuple[str, str]]
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 7, 9
_END_STREAM, _END_HEADERS = 1, 4
#: Bytes of a frame that any peer takes.
_LARGEST_FRAME = 16_384


def over_http(port: int, path: str, head: Head, body: bytes, *, method: str = "POST", timeout_s: float = 20.0) -> int:
    """Status of the answer to one HTTP/1.1 request; 0 if none came."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *(f"{name}: {value}" for name, value in head)]
    if not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in head):
        lines.append(f"content-length: {len(body)}")
    told = "\r\n".join(lines).encode("latin-1") + b"\r\nconnection: close\r\n\r\n" + body
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s) as line:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(told)
        answers = line.makefile("rb")
        while (first := answers.readline().split()) and first[1] == b"100":
            answers.readline()
        return int(first[1]) if len(first) > 1 else 0
    return 0


def over_h2(port: int, head: Head, body: bytes = b"", *, timeout_s: float = 20.0) -> bool:
    """Whether the stream of one HTTP/2 request was answered and ended, not reset. `head` has the pseudo-headers too."""
    block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in head)  # RFC 7541, 6.2.2: not indexed
    frames = [_frame(_SETTINGS, 0, 0, b"")]
    parts = [block[at : at + _LARGEST_FRAME] for at in range(0, len(block), _LARGEST_FRAME)]
    for at, part in enumerate(parts):
        flags = _END_HEADERS * (at == len(parts) - 1) | (_END_STREAM * (not body) if at == 0 else 0)
        frames.append(_frame(_CONTINUATION if at else _HEADERS, flags, 1, part))
    for at in range(0, len(body), _LARGEST_FRAME):
        is_last = at + _LARGEST_FRAME >= len(body)
        frames.append(_frame(_DATA, _END_STREAM * is_last, 1, body[at : at + _LARGEST_FRAME]))
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s) as line:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(_PREFACE + b"".join(frames))
        return _is_answered(line.makefile("rb"))  # type: ignore[arg-type]
    return False


def message_of(payload: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message in its frame."""
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


def grpc_head(path: str, *more: tuple[str, str], without: tuple[str, ...] = ()) -> Head:
    """The head of an ordinary gRPC call, without the lines named, and with more."""
    usual = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "gateway"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "raw"),
    ]  # fmt: skip
    replaced = {name for name, _ in more if name.startswith(":") or name in ("te", "content-type")}
    head = [one for one in usual if one[0] not in {*without, *replaced}]
    own = sorted(more, key=lambda one: not one[0].startswith(":"))
    return sorted([*head, *own], key=lambda one: not one[0].startswith(":"))


def _is_answered(answers: BinaryIO) -> bool:
    while len(start := answers.read(9)) == 9:
        size, kind, flags = int.from_bytes(start[:3], "big"), start[3], start[4]
        answers.read(size)
        if kind in (_RESET, _GOAWAY):
            return False
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return True
    return False


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(text: str) -> bytes:
    """A text without Huffman's code, behind its length."""
    raw = text.encode("latin-1")
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    left, out = len(raw) - 127, bytearray([127])
    while left >= 128:
        out.append(left % 128 | 128)
        left //= 128
    return bytes([*out, left]) + raw
