"""`sluicegate release`: list, show, diff, verify and fetch; `sluicegate keys`; and `sluicegate waive`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accounts.core.quantities import size_text
from registry.core.kinds import backend_of
from registry.core.oms import SIGNATURE_FILE
from sluicegate.cli import capacity, diff, envelope, exits, export, gates, manifests, verify
from sluicegate.cli.errors import CommandError, Problem, refuse
from sluicegate.cli.fetching import fetch_file
from sluicegate.cli.output import Output, short
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.names import model_path, release_path


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verbs = commands.add_parser("release", help="List, show, compare, verify and fetch releases").add_subparsers(
        metavar="VERB", required=True
    )
    parser = verbs.add_parser("list", help="List a model's releases, newest first")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--limit", type=int, default=20, metavar="N")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as verdict=passed, or 'metric.load.latency_p95<=50' (docs/ci.md); again for more",
    )
    parser.set_defaults(run=run_list)
    parser = verbs.add_parser(
        "show", help="Show a release, its files, its waivers, and its envelope beside the measurements"
    )
    parser.add_argument("release", metavar="RELEASE", help="such as sentiment/r2")
    parser.set_defaults(run=run_show)
    diff.add_to(verbs)
    capacity.add_envelope_to(verbs)
    verify.add_to(verbs)
    export.add_to(verbs)
    manifests.add_to(verbs)
    parser = verbs.add_parser("fetch", help="Download a release and its signature, checking every digest")
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder that does not exist yet, or is empty")
    parser.set_defaults(run=run_fetch)
    verify.add_keys_to(commands)
    parser = commands.add_parser(
        "waive",
        help="Let a release run its own code (release managers, never the author)",
        description="Records, with your name and reason, that this digest may run the code that it brings.",
    )
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument("--reason", required=True)
    parser.add_argument("--kind", choices=["code", "pickle"], help="default: the first that the release still needs")
    parser.set_defaults(run=run_waive)


def waive(client: Client, release: str, reason: str, kind: str | None = None) -> dict[str, Any]:
    body = {"reason": reason} if kind is None else {"reason": reason, "kind": kind}
    granted: dict[str, Any] = client.post(f"{release_path(release)}/waivers", body)
    return granted


def run_waive(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        granted = waive(client, arguments.release, arguments.reason, arguments.kind)
        release = client.get(release_path(arguments.release))
    missing = release["waivers_missing"]
    lines = [f"{arguments.release} may run its own code: {arguments.reason}"]
    if missing:
        lines = [f"Waived: {granted['kind']}. {arguments.release} still needs a waiver of kind {', '.join(missing)}."]
    output.result(granted, [*lines, *_code_runs(release)])
    return exits.OK


def _code_runs(release: dict[str, Any]) -> list[str]:
    """Permissions of the release's own code on each node."""
    return [f"on node {run['node']} ({run['containment']}): {run['says']}" for run in release.get("code_runs", [])]


_NO_RELEASE = ("There are no releases yet: sluicegate push DIR.", "Nothing of the model is as you ask.")


def run_list(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        where = {"where": arguments.where} if arguments.where else {}
        found = list(client.pages(f"{model_path(arguments.model)}/releases", limit=arguments.limit, **where))
        releases = [
            {**release, "gates": gates.newest_verdict(client, f"{release['model']}/{release['name']}")}
            for release in found
        ]
    rows = (
        [
            r["name"],
            r.get("state"),
            r["gates"],
            _rolled_back_in(r),
            short(r.get("digest")),
            r.get("author"),
            r.get("sealed_at"),
        ]
        for r in releases
    )
    columns = ("release", "state", "gates", "rolled back", "digest", "author", "sealed at")
    output.table(releases, columns, rows, empty=_NO_RELEASE[bool(arguments.where)])
    return exits.OK


def _rolled_back_in(release: dict[str, Any]) -> str:
    """Environments that took the release back after it had traffic, or an empty string."""
    return ", ".join(dict.fromkeys(one["environment"] for one in release.get("rolled_back", [])))


def run_show(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        verdict = gates.newest_verdict(client, arguments.release)
        path = release_path(arguments.release)
        release = {**client.get(path), "gates": verdict, "envelope": client.get(f"{path}/envelope")}
    manifest = release["manifest"]
    lines = [f"{arguments.release}  {release['state']}"]
    for one in release.get("rolled_back", []):
        lines.append(f"rolled back in {one['environment']} by rollout {one['rollout']}, {one['at']}: {one['why']}")
    lines.append(f"digest {release['digest']}")
    lines.append(f"runtime {manifest['runtime']['image']}, {backend_of(manifest)}")
    for file in manifest["files"]:
        lines.append(f"{file['role']:<10} {short(file['sha256'])}  {size_text(file['size_bytes']):>9}  {file['path']}")
    lines += [f"{path} would import {', '.join(names)}" for path, names in release.get("imports", {}).items()]
    lines += [
        f"{path} contains hidden characters: {', '.join(found)}" for path, found in release.get("hidden", {}).items()
    ]
    lines += [f"needs a waiver of kind {kind}" for kind in release.get("waivers_missing", [])]
    lines += [f"waived by {w.get('granted_by')}: {w.get('reason')}" for w in release.get("waivers", [])]
    lines += _code_runs(release)
    lines.append(
        f"gates {verdict}" + (f": sluicegate gates {arguments.release} --wait" if verdict == "not run" else "")
    )
    lines += envelope.lines(release["envelope"])
    output.result(release, lines)
    return exits.OK


def run_fetch(arguments: argparse.Namespace, output: Output) -> int:
    folder: Path = arguments.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise refuse(f"{folder} is not an empty folder.", "Name one that does not exist yet.")
    with connect(arguments.server) as client:
        base = release_path(arguments.release)
        release = client.get(base)
        if wrong := verify.wrong_manifest(release):
            raise CommandError(
                wrong[0], exit_code=exits.FAILED, next_step="Ask an administrator to run `sluicegate audit verify`."
            )
        files = release["manifest"]["files"]
        total, done = sum(file["size_bytes"] for file in files), 0
        with output.progress("Fetching", is_bytes=True) as meter:
            for file in files:
                fetch_file(client, f"{base}/files/{quote(file['path'])}", folder, file["path"], file["sha256"])
                done += file["size_bytes"]
                meter(done, total)
        is_signed = _fetch_signature(client, base, folder)
    output.result(
        {
            "release": arguments.release,
            "digest": release["digest"],
            "folder": str(folder),
            "files": len(files),
            "is_signed": is_signed,
        },
        [
            f"{arguments.release} is in {folder}: {len(files)} files, {size_text(total)}, every digest checked.",
            f"Next: sluicegate release verify {folder} --key PEM" if is_signed else "It was never signed.",
        ],
    )
    return exits.OK


def _fetch_signature(client: Client, base: str, folder: Path) -> bool:
    """Whether there was a signature; it lies in the folder then, where `release verify DIR` looks for it."""
    try:
        bundle = b"".join(client.stream(f"{base}/signature"))
    except Problem as problem:
        if problem.status != 404:
            raise
        return False
    (folder / SIGNATURE_FILE).write_bytes(bundle)
    return True
