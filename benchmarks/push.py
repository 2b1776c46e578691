"""Pushing to a local S3: our client beside a bare parallel boto3 upload, bytes through the app, and verifying beside plain sha256.

    python -m benchmarks.push [--mib 2048] [--rounds 3] [--connections 4]

A PostgreSQL, a Valkey, a SeaweedFS, a web process and a worker of its own, all on this machine. Both uploads take the
same file, in parts of 16 MiB, over the same number of connections, after a small one that warms both; they take
turns, and the rounds' ratios are compared, because the machine may be busy with other things. `bare` is boto3's
`upload_file`. `ours` is the command line's sender as it is: begin, sign, send, complete. Verifying is the worker's
own reading (the store's `chunks`, and sha256), from a folder and from the S3, beside sha256 of a buffer in memory on
one core.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PART_BYTES = 16 << 20
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--only", choices=["push", "verify"])
    said = parser.parse_args()
    with _stores() as (folder, server, installation):
        file = folder / "weights.data"
        _write(file, said.mib * MIB)
        print(
            f"{said.mib} MiB, parts of {PART_BYTES // MIB} MiB, {said.connections} connections, {os.cpu_count()} cores",
            flush=True,
        )
        if said.only != "verify":
            push(installation, server, file, said.rounds, said.connections)
        if said.only != "push":
            verify(file, folder, said.rounds)


@contextlib.contextmanager
def _stores() -> Iterator[tuple[Path, Any, Any]]:
    """(a folder, the S3, the installation on it)."""
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-push-"))
    from sluicegate.stack.postgres import Postgres
    from sluicegate.stack.valkey import Valkey

    postgres, valkey = Postgres(folder, is_durable=True), Valkey(folder)
    (folder / "static").mkdir()
    ending: list[Callable[[], Any]] = [lambda: shutil.rmtree(folder, ignore_errors=True)]
    try:
        ending.append(postgres.remove)
        postgres.start()
        os.environ.update(DATABASE_URL=postgres.owner_url, SLUICEGATE_STATE_DIR=str(folder))
        ending.append(valkey.stop)
        os.environ.update(REDIS_URL=valkey.start(), DJANGO_SETTINGS_MODULE="sluicegate.settings")
        from tests.support.rigs.s3_rig import SeaweedFS

        server = SeaweedFS(folder / "weed")
        ending.append(server.stop)
        server.start()
        env = server.environment(server.place())
        os.environ.update(env, SLUICEGATE_LOG_LEVEL="WARNING")
        import django

        django.setup()
        from django.core.management import call_command

        from tests.support.rigs.upload_rig import Installation

        call_command("migrate", interactive=False, verbosity=0)
        installation = Installation(folder, {**env, "SLUICEGATE_LOG_LEVEL": "INFO"}, part_bytes=PART_BYTES)
        ending.append(installation.stop)
        installation.start_web()
        installation.start_worker()
        yield folder, server, installation
    finally:
        for end in reversed(ending):
            end()


def _write(file: Path, size: int) -> None:
    noise = random.Random(1)
    with file.open("wb") as out:
        for _ in range(size // (4 * MIB)):
            out.write(noise.randbytes(4 * MIB))


def push(installation: Any, server: Any, file: Path, rounds: int, connections: int) -> None:
    from boto3.s3.transfer import TransferConfig

    from accounts.actions import actor_for, issue_token
    from sluicegate.cli.output import Output
    from sluicegate.client import Client
    from sluicegate.client.folder import hash_files
    from sluicegate.client.uploads import await_verified, send_files
    from tests.support.rigs.s3_rig import BUCKET
    from tests.support.worlds.registry_samples import person, release_yaml, served_model

    user = person("bench")
    served_model(actor_for(user))
    token = issue_token(user=user, name="bench", actor=actor_for(user))
    size = file.stat().st_size
    config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=connections)
    client, output, quiet = server.client(), Output(), Quiet()
    bare, ours = list[float](), list[float]()
    with Client(installation.url, token) as api:
        with _clocked() as hashing:
            [local] = hash_files([("artifact/weights.data", file)], lambda *_: None)
        print(f"hashing before: {_speed(size, hashing[0])}", flush=True)
        (file.parent / "warm").write_bytes(file.open("rb").read(2 * PART_BYTES))
        [warm] = hash_files([("artifact/warm.data", file.parent / "warm")], lambda *_: None)
        client.upload_file(str(warm.source), BUCKET, "bare/warm", Config=config)
        draft = api.post("/models/sentiment/releases", release_yaml())
        send_files(api, draft["id"], [warm], quiet, connections)
        for number in range(rounds):
            with _clocked() as took:
                client.upload_file(str(file), BUCKET, f"bare/{number}", Config=config)
            bare.append(took[0])
            client.delete_object(Bucket=BUCKET, Key=f"bare/{number}")
            draft = api.post("/models/sentiment/releases", release_yaml({"provenance.notes": f"Round {number}."}))
            with _clocked() as took:
                send_files(api, draft["id"], [local], quiet, connections)
            ours.append(took[0])
            with _clocked() as verified:
                await_verified(api, draft["id"], quiet)
            api.delete(f"/releases/{draft['id']}")
            output.say(
                f"round {number + 1}: bare {_speed(size, bare[-1])}, ours {_speed(size, ours[-1])}, "
                f"ratio {bare[-1] / ours[-1]:.2f}; verified after {verified[0]:.1f} s more ({_speed(size, verified[0])})"
            )
    ratio = statistics.median(b / o for b, o in zip(bare, ours, strict=True))
    print(f"ours / bare: median {ratio:.2f}, bar 0.90: {'held' if ratio >= 0.9 else 'MISSED'}")
    print(f"artifact bytes through the app: {installation.body_bytes('PUT')} of {size * rounds}")


def verify(file: Path, folder: Path, rounds: int) -> None:
    """The worker's reading, from a folder and from the S3, beside sha256 of memory on one core; in turns.

    `cpu` compares the processor time of both, which other programs on the machine change less than the clock on the wall.
    """
    from registry.storage import FolderStore, adapter

    size = file.stat().st_size
    local = FolderStore(folder / "blobs", max_bytes=1 << 40)
    with file.open("rb") as stream:
        key, _ = local.put_stream(stream)
    there = adapter()
    with file.open("rb") as stream:
        there.put_stream(stream)
    plain, read, cpu = list[float](), list[float](), list[float]()
    buffer = random.Random(2).randbytes(4 * MIB)
    for _ in range(rounds):
        with _clocked() as took:
            digest = hashlib.sha256()
            for _ in range(size // len(buffer)):
                digest.update(buffer)
        plain.append(took[0])
        plain_cpu = took[1]
        with _clocked() as took:
            _read(local, key)
        read.append(took[0])
        cpu.append(plain_cpu / took[1])
        with _clocked() as from_s3:
            _read(there, key)
        print(
            f"sha256 of memory {_speed(size, plain[-1])}, verifying a folder's file {_speed(size, read[-1])} "
            f"({plain[-1] / read[-1]:.2f}, cpu {cpu[-1]:.2f}), an S3's {_speed(size, from_s3[0])} ({plain[-1] / from_s3[0]:.2f})",
            flush=True,
        )
    ratio = statistics.median(p / r for p, r in zip(plain, read, strict=True))
    said = f"median {ratio:.2f} by the clock, {statistics.median(cpu):.2f} by processor time"
    print(f"verify / sha256 of one core: {said}, bar 0.90: {'held' if ratio >= 0.9 else 'MISSED'}")


def _read(keys: Any, key: str) -> None:
    digest = hashlib.sha256()
    for chunk in keys.chunks(key):
        digest.update(chunk)
    assert digest.hexdigest() == key


class Quiet:
    """An output that shows nothing, as in a script."""

    def say(self, line: str) -> None: ...

    @contextlib.contextmanager
    def progress(self, title: str, *, is_bytes: bool = False) -> Iterator[Any]:
        yield lambda *_: None


@contextlib.contextmanager
def _clocked() -> Iterator[list[float]]:
    """A list that gets the seconds that it took, and those of this process's processor time."""
    took: list[float] = []
    began, busy = time.perf_counter(), time.process_time()
    yield took
    took += [time.perf_counter() - began, time.process_time() - busy]


def _speed(size: int, seconds: float) -> str:
    return f"{size / MIB / seconds:.0f} MiB/s"


if __name__ == "__main__":
    main()
