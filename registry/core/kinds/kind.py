"""The knowledge about one kind of inference server, as a value of pure data and functions.

A new kind is one file beside this one, and one line in the table of `registry.core.kinds`. Other
files ask the value, and none of them compares a kind's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Protocol

from registry.core.kinds.events import Events
from registry.core.kinds.words import Words
from registry.core.schema import Record

HTTP, GRPC = "http", "grpc"


@dataclass(frozen=True)
class Backend:
    """The part of a server that loads a release's files.

    `runs_as`: the server's own name for it; empty if no server started here runs it.
    `runner`: file of `serving/runner` that is placed beside the release's files as model.py.
    """

    entry: str  # path of the file that it loads, such as artifact/model.onnx
    runs_as: str = ""
    runner: str = ""


@dataclass(frozen=True)
class Calls:
    """Paths that pass the gateway, as regular expressions by protocol.

    Inference is evidence for a release; questions are not. Every other path changes the server or
    shows all of it. Envoy refuses an expression of more than 100 instructions, so each is short.
    `words`: the calls, for a caller who asked by another path.
    `names`: HTTP paths with the model's name in the body, in its member `model`. Such a body asks
    for a stream by its member `stream`, so that the paths of streams are the same.
    """

    inference: Mapping[str, str]
    words: str
    stream: Mapping[str, str] = field(default_factory=dict)
    question: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    @property
    def protocols(self) -> tuple[str, ...]:
        return tuple(self.inference)


@dataclass(frozen=True)
class Image:
    """The parts of a serving environment that the digest of the runtime image covers.

    `files`: names of the measured files → their paths in site-packages, which may have a `*`.
    `recorded`: beginnings of paths in the first package's wheel, with the digests that it recorded.
    `packages`: the measured packages. Of alternatives exactly one is installed.
    """

    name: str
    lock: str  # file of `serving/`
    packages: tuple[tuple[str, ...], ...]
    recorded: tuple[str, ...]
    files: Callable[[str], Mapping[str, str]]  # by Python's version, such as 3.11
    runner: tuple[str, ...]  # files of `serving/runner` that belong to the image
    server_version: Callable[[str], str] = str  # of the first package's version

    @property
    def package(self) -> str:
        return self.packages[0][0]


@dataclass(frozen=True)
class ServerPlace:
    """The place of one server. `files`: the image's files by their names."""

    venv: PurePath
    site: PurePath
    files: Mapping[str, PurePath]
    loads: PurePath  # the folder that the server loads
    folder: PurePath
    address: str
    ports: Mapping[str, int]
    secret: str
    shm_prefix: str
    model: str


@dataclass(frozen=True)
class Start:
    """A server's command. `hidden`: arguments behind `argv` that no other user may read.

    `links`: paths below the server's folder → the files to which they are linked.
    `libraries`: folders for the loader, before that of the environment's own Python.
    """

    argv: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, PurePath] = field(default_factory=dict)
    libraries: tuple[PurePath, ...] = ()


class Codec(Protocol):
    """A text model's HTTP calls: one text in, one text out."""

    @property
    def path(self) -> str: ...

    @property
    def models(self) -> str:
        """Path of the list of models."""
        ...

    def listed(self, body: bytes) -> set[str]:
        """Names of the models in that list."""
        ...

    def request(self, model: str, text: str) -> bytes:
        """Body of a request. Its answer depends on the text alone."""
        ...

    def answer(self, body: bytes) -> str:
        """The text of an answer. Raises ValueError."""
        ...

    def wrong(self, model: str) -> Mapping[str, bytes]:
        """Bodies that a server must refuse as the caller's mistake, by their names."""
        ...


@dataclass(frozen=True)
class Progress:
    """A server's work by its statistics. A number that they lack is None.

    `finished`: inferences that went well since the load. `cost_s`: their mean time on an instance,
    in seconds.
    """

    finished: int | None = None
    cost_s: float | None = None


@dataclass(frozen=True)
class ServerKind:
    """One kind of inference server. Agents start servers of a kind with runnable backends; the
    others have neither image nor start.

    Args:
        loads: folder of a release's artifact/, below the model's folder.
        writes: files that this product writes there itself, by backend.
        has_config: whether config.pbtxt is generated beside them.
        interfaces: codecs by `serving.interface`. A kind without any speaks the Open Inference
            Protocol.
        options: fields of `serving.options`.
        has_gpu: whether its serving environment can compute on a GPU.
        health: path that answers 200 once the release is loaded. A kind without one tells by its
            model index.
        tells_live: whether the liveness call is answered while a model computes; silence then means
            a frozen process. Source: `tests/contracts/test_liveness.py`, on real servers.
        exit_grace_s: how long the server may take over its own end, in seconds.
        died: words of an answer after which nothing heals the process.
        progress: reads the server's statistics.
        events: of its HTTP streams. Gateways measure no others.
    """

    name: str
    backends: Mapping[str, Backend]
    calls: Calls
    words: Words
    image: Image = Image("", "", (), (), lambda _: {}, ())
    start: Callable[[ServerPlace], Start] = lambda _: Start(())
    exit_grace_s: float = 0.0
    loads: str = ""
    writes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_config: bool = False
    interfaces: Mapping[str, Codec] = field(default_factory=dict)
    options: Record = field(default_factory=lambda: Record({}))
    has_gpu: bool = True
    health: str = ""
    tells_live: bool = False
    died: str = ""
    progress: Callable[[Mapping[str, Any]], Progress] = lambda _: Progress()
    events: Events | None = None

    @property
    def runnable(self) -> dict[str, Backend]:
        """Backends of servers that are started here."""
        return {name: one for name, one in self.backends.items() if one.runs_as}
