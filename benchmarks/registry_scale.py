"""What the registry takes at size: a plan of collection, lists of releases, a seal of many files.

    python -m benchmarks.registry_scale [--blobs 100000] [--releases 100000] [--files 1000] [--requests 200]

A PostgreSQL of its own (durable) and a folder store of its own, on this machine's disk. The plan is that of a collection: every
release, every blob, every file in the store, with a reason for each. The lists are of one model with all the releases, asked of the
product in this process, through every layer but HTTP itself; deep pages and old releases among them. The seal is the product's own
action, with every file in the store. `wall` is what somebody waits, `cpu` what this process computes; where both differ much, other
work had the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stores import database

PER_RELEASE = 10  # blobs of a release in the plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blobs", type=int, default=100_000)
    parser.add_argument("--releases", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=200)
    said = parser.parse_args()
    with database(is_durable=True):
        from django.conf import settings

        settings.ALLOWED_HOSTS = ["testserver"]
        settings.LOGGING_CONFIG = None
        (settings.STATE_DIR / "static").mkdir(exist_ok=True)
        seal(said.files)
        plan(said.blobs)
        lists(said.releases, said.requests)


@contextmanager
def clocked(what: str, bar_s: float | None = None) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    bar = "" if bar_s is None else f", bar {bar_s:g} s: {'held' if wall < bar_s else 'MISSED'}"
    print(f"{what}: wall {wall:.2f} s, cpu {cpu:.2f} s{bar}", flush=True)


# --- a seal -----------------------------------------------------------------------------------------------------------


def seal(count: int) -> None:
    """The product's own draft and seal of one release of `count` files, all of them in the store."""
    import io

    from registry import actions
    from registry.models import Release
    from registry.storage import store
    from tests.support.worlds.model_files import onnx_file
    from tests.support.worlds.registry_samples import developer, release_yaml, served_model

    dev = developer()
    model = served_model(dev)
    files = {f"artifact/part-{i:05}.txt": f"file {i}".encode() for i in range(count - 1)}
    files["artifact/model.onnx"] = onnx_file()
    listed = [
        {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
        for path, data in files.items()
    ]
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml(), files=listed)
    with clocked(f"upload of {count} files one by one, in this process"):
        for one in listed:
            actions.add_file(
                actor=dev, release=draft, path=one["path"], sha256=one["sha256"], stream=io.BytesIO(files[one["path"]])
            )
    with clocked(f"seal of {count} verified files", 2.0):
        release = actions.seal(actor=dev, release=draft)
    assert release.state == "sealed" and Release.objects.count() == 1
    assert all(store().exists(one["sha256"]) for one in listed)


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan(count: int) -> None:
    """The plan of a collection over `count` blobs of which every tenth release is retired."""
    from django.conf import settings

    from registry.actions import collect_unused
    from registry.core.garbage_collection import Fate, Kind
    from registry.queries.gc_plan import present_plan
    from tests.support.worlds.factories import make_admin

    with clocked(f"(making {count} blobs in {count // PER_RELEASE} releases, with their bytes)"):
        rows(count)
        bytes_of(count, Path(settings.BLOB_STORE))
    with clocked(f"plan of a collection over {count} blobs", 5.0):
        found = present_plan()
    totals = found.totals()
    print("  " + ", ".join(f"{fate} {counts['blobs']}" for fate, counts in totals.items() if counts["blobs"]))
    assert len(found.of(Kind.BLOB, *Fate)) >= count and totals["mark"]["blobs"] >= count // 10
    with clocked("a run that marks 1,000 of them"):
        collect_unused(actor=make_admin("root"))


def sha256_sql(number: str, salt: str) -> str:
    return f"encode(sha256(convert_to('{salt}' || {number}, 'UTF8')), 'hex')"


def rows(count: int) -> None:
    """Blobs, and releases of PER_RELEASE blobs each, sealed, every tenth of them retired; and a few drafts."""
    from django.db import connection, transaction

    releases = count // PER_RELEASE
    team = "(SELECT id FROM registry_servedmodel WHERE slug = 'sentiment')"
    blob = sha256_sql("n::text", "blob ")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(
            f"INSERT INTO registry_blob (sha256, size_bytes, store_key, state, problem, part_sha256, created_at) "
            f"SELECT {blob}, 10, {blob}, 'verified', '', '[]', now() - interval '1 day' FROM generate_series(1, %s) n",
            [count],
        )
        cursor.execute(
            "INSERT INTO registry_release (id, model_id, state, spec, expected_files, manifest, is_code_bearing, version, created_at) "
            f"SELECT md5('release ' || n)::uuid, {team}, 'draft', '{{}}', '[]', '', false, 1, now() FROM generate_series(1, %s) n",
            [releases],
        )
        cursor.execute(
            "INSERT INTO registry_releasefile (release_id, path, role, blob_id) "
            f"SELECT md5('release ' || (1 + (n - 1) / {PER_RELEASE}))::uuid, 'artifact/' || n, 'artifact', {blob} "
            "FROM generate_series(1, %s) n",
            [count],
        )
        cursor.execute(
            "UPDATE registry_release SET state = 'sealed', number = m.n, digest = 'sha256:' || "
            f"{sha256_sql('m.n::text', 'release ')}, sealed_at = now(), manifest = '{{}}' "
            "FROM (SELECT n, md5('release ' || n)::uuid AS id FROM generate_series(2, %s) n) m WHERE registry_release.id = m.id",
            [releases],
        )
        cursor.execute(
            "UPDATE registry_release SET state = 'retired', retired_at = now() WHERE state = 'sealed' AND mod(number, 10) = 0"
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def bytes_of(count: int, folder: Path) -> None:
    """A file for every blob, where the folder store has it, and ten that no blob names."""
    for n in range(1, count + 11):
        sha256 = hashlib.sha256(f"blob {n}".encode()).hexdigest()
        path = folder / sha256[:2] / sha256[2:4] / sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"0123456789")


# --- lists ------------------------------------------------------------------------------------------------------------


def lists(count: int, requests: int) -> None:
    """Lists and single releases of one model that has `count` releases."""
    from django.test import Client

    from accounts.actions import actor_for, issue_token
    from accounts.models import User
    from tests.support.worlds.factories import make_user

    with clocked(f"(making a model with {count} releases)"):
        many(count)
    make_user("reader", team="vision")
    reader = User.objects.get(username="reader")
    token = issue_token(user=reader, name="benchmark", actor=actor_for(reader))
    api, pages = Client(headers={"Authorization": f"Bearer {token}"}), Client()
    pages.force_login(reader)
    here, deep = "/api/v1/models/many", deep_page(api, "/api/v1/models/many/releases?page_size=200", count // 1000)
    for what, client, address in (
        ("API, first page of 50", api, f"{here}/releases"),
        ("API, first page of 200", api, f"{here}/releases?page_size=200"),
        ("API, a page of 200 far down", api, deep),
        ("API, one release", api, f"{here}/releases/r{count // 2}"),
        ("API, the models", api, "/api/v1/models"),
        ("page of the model", pages, "/models/many/"),
        ("page of the models", pages, "/models/"),
        ("page of a release", pages, f"/models/many/r/{count // 2}/"),
    ):
        ask(what, lambda client=client, address=address: client.get(address), requests)


def many(count: int) -> None:
    """A model with releases that are as large as small ones are: a manifest of a few hundred bytes."""
    from django.db import connection, transaction

    from accounts.models import Team
    from ledger.core.canonical import canonical_bytes
    from registry.models import Blob, ServedModel
    from tests.support.worlds.factories import CONTRACT, make_manifest

    model = ServedModel.objects.create(
        slug="many", team=Team.objects.get(slug="vision"), contract=CONTRACT, last_number=count
    )
    blob = Blob.objects.earliest("pk")
    manifest = canonical_bytes(make_manifest("many", blob)).decode()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(
            "INSERT INTO registry_release (id, model_id, state, spec, expected_files, manifest, is_code_bearing, version, created_at, "
            "number, digest, sealed_at) SELECT md5('many ' || n)::uuid, %s, 'sealed', '{}', '[]', %s, false, 2, now(), n, "
            f"'sha256:' || {sha256_sql('n::text', 'many ')}, now() FROM generate_series(1, %s) n",
            [model.pk, manifest, count],
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def deep_page(client: Any, address: str, pages: int) -> str:
    """The address of a page so many pages further down."""
    for _ in range(pages):
        following = client.get(address).json()["next"]
        if not following:
            break
        address = following
    return address


def ask(what: str, get: Callable[[], Any], requests: int, bar_ms: float = 50.0) -> None:
    times: list[float] = []
    cpu = time.process_time()
    for i in range(requests + 5):
        began = time.perf_counter()
        answer = get()
        took = 1000 * (time.perf_counter() - began)
        assert answer.status_code == 200, (what, answer.status_code, answer.content[:300])
        if i >= 5:  # the first ones fill caches
            times.append(took)
    cpu_ms = 1000 * (time.process_time() - cpu) / (requests + 5)
    p95 = statistics.quantiles(times, n=20)[-1]
    verdict = "held" if p95 <= bar_ms else "MISSED"
    print(
        f"{what}: p50 {statistics.median(times):.1f} ms, p95 {p95:.1f} ms, cpu {cpu_ms:.1f} ms each; bar {bar_ms:g} ms: {verdict}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("SLUICEGATE_LOG_LEVEL", "ERROR")
    main()
