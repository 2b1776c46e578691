"""What is kept of a gateway's stream: only what it took, all of what it took, and only in a file that can be believed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest as Request
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse as Response
from google.protobuf import any_pb2

from serving.environments.core.addresses import TlsFiles
from serving.traffic.control_plane.kept import Holding, Resources, SnapshotFile
from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, SCOPE
from serving.traffic.control_plane.relay import KeptAnswers, Relay


def one(type_url: str, name: str, version: str = "1") -> discovery_pb2.Resource:
    body = any_pb2.Any(type_url=type_url, value=version.encode())
    return discovery_pb2.Resource(name=name, version=version, resource=body)


def offer(holding: Holding, type_url: str, *names: str, version: str = "1", error: str = "", gone: str = "") -> bool:
    """Sends these, and has them answered; whether that changed anything."""
    told = [one(type_url, name, version) for name in names]
    holding.send(Response(type_url=type_url, nonce="n", resources=told, removed_resources=[gone] if gone else []))
    answer = Request(type_url=type_url, response_nonce="n")
    if error:
        answer.error_detail.message = error
    return holding.receive(answer)


def whole() -> Holding:
    holding = Holding({})
    for type_url, name in ((CLUSTER, "c"), (ENDPOINTS, "c"), (LISTENER, "l"), (SCOPE, "gw/a")):
        assert offer(holding, type_url, name)
    return holding


def named(resources: Resources, type_url: str) -> dict[str, str]:
    return {name: found.version for name, found in resources.get(type_url, {}).items()}


def test_nothing_is_whole_before_a_gateway_could_serve_by_it() -> None:
    holding = Holding({})
    for type_url in (CLUSTER, LISTENER):
        offer(holding, type_url, "x")
        assert holding.whole() == {}
    offer(holding, SCOPE, "gw/a")
    assert named(holding.whole(), SCOPE) == {"gw/a": "1"}


def test_what_is_sent_or_refused_is_not_kept() -> None:
    holding = whole()
    holding.send(Response(type_url=SCOPE, nonce="later", resources=[one(SCOPE, "gw/a", "2")]))
    assert named(holding.whole(), SCOPE) == {"gw/a": "1"}
    offer(holding, SCOPE, "gw/a", "gw/b", version="3", error="gw/b is bad")
    assert named(holding.whole(), SCOPE) == {"gw/a": "1"}  # one bad virtual host refuses all
    offer(holding, CLUSTER, "c", "d", version="3", error="d is bad")
    assert named(holding.whole(), CLUSTER) == {"c": "3"}


def test_what_is_removed_or_no_longer_asked_for_is_forgotten() -> None:
    holding = whole()
    offer(holding, SCOPE, "gw/b", gone="gw/a")
    holding.receive(Request(type_url=ENDPOINTS, resource_names_unsubscribe=["c"]))
    assert named(holding.whole(), SCOPE) == {"gw/b": "1"} and named(holding.whole(), ENDPOINTS) == {}


def test_what_was_not_kept_is_asked_for_again() -> None:
    holding = Holding({CLUSTER: {"c": one(CLUSTER, "c", "2"), "old": one(CLUSTER, "old")}})
    has = {"c": "2", "lost": "7"}
    request = Request(type_url=CLUSTER, initial_resource_versions=has)
    assert not holding.receive(request)
    assert dict(request.initial_resource_versions) == {"c": "2", "lost": ""}
    for type_url in (LISTENER, SCOPE):
        offer(holding, type_url, "x")
    assert named(holding.whole(), CLUSTER) == {"c": "2"}  # what this Envoy does not have is not kept for it


def test_a_file_gives_what_was_written_to_its_own_gateway(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "snapshot", "gateway-1")
    assert file.read() == {}
    file.write(whole().whole())
    assert file.read() == whole().whole()
    assert SnapshotFile(file.path, "gateway-2").read() == {}


def changed(resources: Resources, type_url: str, name: str, version: str = "") -> Resources:
    """With another version of one resource, or without it."""
    rest = {other: found for other, found in resources.get(type_url, {}).items() if other != name}
    return {**resources, type_url: rest | ({name: one(type_url, name, version)} if version else {})}


def kept(path: Path) -> Resources:
    """As another process would read it."""
    return SnapshotFile(path, "gateway-1").read()


def with_changes(path: Path) -> list[Resources]:
    """A file of a snapshot and three changes, and what it held after each."""
    file, held = SnapshotFile(path, "gateway-1"), whole().whole()
    every = [held]
    assert file.write(held)
    for type_url, name, version in ((SCOPE, "gw/a", "2"), (ENDPOINTS, "c", ""), (CLUSTER, "d", "1")):
        held = changed(held, type_url, name, version)
        assert file.write(held)
        every.append(held)
    return every


def test_changes_are_appended_and_read_after_it(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    first, *_, last = with_changes(path)
    assert named(last, SCOPE) == {"gw/a": "2"} and named(last, CLUSTER) == {"c": "1", "d": "1"} and not last[ENDPOINTS]
    SnapshotFile(tmp_path / "first", "gateway-1").write(first)
    assert path.read_bytes().startswith((tmp_path / "first").read_bytes())
    assert kept(path) == last
    SnapshotFile(path, "gateway-1").write(last)  # another process joins them
    assert path.read_bytes().count(b"gateway-1") == 1
    assert kept(path) == {type_url: of_type for type_url, of_type in last.items() if of_type}


def test_a_file_that_was_cut_at_any_byte_holds_what_was_whole_by_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a machine that stops leaves it: no change was told of before all of it was there."""
    path = tmp_path / "snapshot"
    file, ends, every = SnapshotFile(path, "gateway-1"), [], []
    held = whole().whole()
    for version in ("1", "2", "3"):
        held = changed(held, SCOPE, "gw/a", version)
        file.write(held)
        every.append(held)
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        path.chmod(0o600)
        was_whole = sum(end <= size for end in ends)
        assert kept(path) == (every[was_whole - 1] if was_whole else {}), size
    assert "was being written" in caplog.text


def test_a_file_with_any_byte_changed_is_not_used_or_holds_what_was_before(tmp_path: Path) -> None:
    """One that says that it goes on longer than it does looks as if it was cut."""
    path = tmp_path / "snapshot"
    every = with_changes(path)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        path.chmod(0o600)
        assert kept(path) in ({}, *every[:-1]), at


def test_what_another_wrote_is_written_over_whole(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    mine, other = SnapshotFile(path, "gateway-1"), SnapshotFile(path, "gateway-1")
    held = whole().whole()
    for file, version in ((mine, "1"), (other, "2"), (mine, "3"), (mine, "4"), (other, "5")):
        held = changed(held, SCOPE, "gw/a", version)
        assert file.write(held) and kept(path) == held
    path.unlink()
    assert other.write(held) and kept(path) == held


def test_changes_are_joined_before_they_outgrow_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.traffic.control_plane.kept.LEAST_TO_JOIN", 2000)
    path = tmp_path / "snapshot"
    file, held, parts = SnapshotFile(path, "gateway-1"), whole().whole(), []
    for number in range(100):
        held = changed(held, SCOPE, "gw/a", str(number))
        file.write(held)
        assert kept(path) == held
        parts.append(path.read_bytes().count(b"gateway-1"))
    assert parts.count(1) > 2 and max(parts) > 5 and path.stat().st_size < 5000


@pytest.mark.parametrize("harm", ["cut", "flip", "open", "empty", "other JSON"])
def test_a_file_that_was_harmed_is_not_used(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    file = SnapshotFile(tmp_path / "snapshot", "gateway-1")
    file.write(whole().whole())
    data = file.path.read_bytes()
    harmed = {"cut": data[:-1], "flip": data[:-1] + bytes([data[-1] ^ 1]), "empty": b"", "other JSON": b"[1]\n" + data}
    file.path.write_bytes(harmed.get(harm, data))
    if harm == "open":
        file.path.chmod(0o640)
    assert file.read() == {} and "is not used" in caplog.text


@pytest.mark.parametrize("fails", ["kept.write_whole", "kept.os.fsync"])
def test_a_snapshot_that_cannot_be_written_leaves_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    file, held = SnapshotFile(tmp_path / "snapshot", "gateway-1"), whole().whole()
    if fails == "kept.os.fsync":
        assert file.write(held)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"serving.traffic.control_plane.{fails}", full)
        for version in ("2", "3"):  # nor is there one to remove
            assert not file.write(changed(held, SCOPE, "gw/a", version))
            assert not file.path.exists()
    assert file.write(held) and file.read() == held


def test_an_envoy_is_told_what_it_lacks_and_nothing_twice() -> None:
    answers = KeptAnswers(
        {CLUSTER: {"c": one(CLUSTER, "c"), "d": one(CLUSTER, "d")}, ENDPOINTS: {"gw": one(ENDPOINTS, "gw")}}
    )
    first = answers.to(Request(type_url=CLUSTER, initial_resource_versions={"c": "2"}))
    assert first is not None and [told.name for told in first.resources] == ["d"]
    assert answers.to(Request(type_url=CLUSTER, response_nonce=first.nonce)) is None
    empty = answers.to(Request(type_url=SCOPE))
    assert empty is not None and not empty.resources  # it waits for a first word
    for _ in range(2):  # asking again means: send again
        asked = answers.to(Request(type_url=ENDPOINTS, resource_names_subscribe=["gw", "unknown"]))
        assert asked is not None and [told.name for told in asked.resources] == ["gw"]


def test_a_living_envoy_gets_no_older_routes() -> None:
    """The file may be older than what it has, where that could not be written: a weight that was taken back stays taken back."""
    answers = KeptAnswers({SCOPE: {"gw/m": one(SCOPE, "gw/m"), "gw/gone": one(SCOPE, "gw/gone")}})
    told = answers.to(Request(type_url=SCOPE, initial_resource_versions={"gw/m": "2"}))
    assert told is not None and not told.resources


def test_the_same_once_more_is_no_change() -> None:
    held = whole()
    again = Response(type_url=SCOPE, nonce="again", resources=held.whole()[SCOPE].values())
    held.send(again)
    assert not held.receive(Request(type_url=SCOPE, response_nonce="again"))


async def _reached(relay: Relay) -> object:
    return await relay._reach()


def test_without_certificates_no_control_plane_is_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So that what was kept is served while they are being exchanged."""
    nowhere = TlsFiles(*(str(tmp_path / name) for name in ("a", "b", "c")))
    relay = Relay(SnapshotFile(tmp_path / "snapshot", "gateway-1"), ("127.0.0.1:1",), nowhere)
    assert asyncio.run(_reached(relay)) is None and "certificates cannot be read" in caplog.text
