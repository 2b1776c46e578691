"""`sluicegate release export`: a release for other tools: Triton's model repository, OMS bundle, ML-BOM, attestations."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accounts.core.quantities import size_text
from registry.core.triton_tree import tree_of
from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError, refuse
from sluicegate.cli.fetching import fetch_file
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.cli.verify import wrong_manifest
from sluicegate.client import Client
from sluicegate.client.names import release_of, release_path

ABOUT = """--triton: DIR becomes a model repository, MODEL/config.pbtxt and MODEL/NUMBER/…, every digest checked, for a stock tritonserver
with the release's backend; a repository that is there gets one version more. --oms, --bom, --attestations: writes one file."""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb below `release`."""
    parser = verbs.add_parser("export", help="Write a release for other tools", description=ABOUT)
    parser.add_argument("release", metavar="RELEASE")
    parser.add_argument("target", type=Path, metavar="DIR|FILE")
    kinds = parser.add_mutually_exclusive_group(required=True)
    for kind, text in (
        ("triton", "a model repository of Triton"),
        ("oms", "the OpenSSF Model Signing bundle, as model.sig"),
        ("bom", "a CycloneDX ML-BOM, as JSON"),
        ("attestations", "every signed statement, one Sigstore bundle a line"),
    ):
        kinds.add_argument(f"--{kind}", action="store_const", const=kind, dest="kind", help=text)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    target: Path = arguments.target
    with connect(arguments.server) as client:
        base = release_path(arguments.release)
        if arguments.kind == "triton":
            return _triton(client, base, arguments.release, target, output)
        text = {"oms": _oms, "bom": _bom, "attestations": _attestations}[arguments.kind](client, base)
    if target.is_dir():
        raise refuse(f"{target} is a folder, and this is one file.", "Name a file.")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise refuse(f"{target} cannot be written: {error.strerror}.", "Name another file.") from error
    told = {"release": arguments.release, "kind": arguments.kind, "file": str(target), "size_bytes": len(text.encode())}
    output.result(told, [f"{arguments.release}: {target}, {size_text(told['size_bytes'])}."])
    return exits.OK


def _oms(client: Client, base: str) -> str:
    return b"".join(client.stream(f"{base}/signature")).decode()


def _bom(client: Client, base: str) -> str:
    return json.dumps(client.get(f"{base}/mlbom"), indent=2, ensure_ascii=False) + "\n"


def _attestations(client: Client, base: str) -> str:
    """As in-toto writes a bundle of attestations: JSON lines."""
    found = client.pages(f"{base}/attestations")
    return "".join(json.dumps(one["bundle"], separators=(",", ":"), ensure_ascii=False) + "\n" for one in found)


def _triton(client: Client, base: str, name: str, folder: Path, output: Output) -> int:
    release = client.get(base)
    if wrong := wrong_manifest(release):
        raise CommandError(wrong[0], exit_code=exits.FAILED, next_step="Run `sluicegate release verify`.")
    manifest, number = release["manifest"], int(release_of(name)[1].removeprefix("r"))
    try:
        placed, texts = tree_of(manifest, number)
    except ValueError as error:
        raise refuse(f"{name} cannot be a model repository: {error}.") from error
    version = folder / manifest["model"] / str(number)
    if version.exists():
        raise refuse(f"{version} is there already.", "Name another folder, or remove it.")
    _refuse_another_config(folder, texts, name)
    by_path: dict[str, dict[str, Any]] = {file["path"]: file for file in manifest["files"]}
    total, done = sum(by_path[path]["size_bytes"] for path in placed.values()), 0
    with output.progress("Exporting", is_bytes=True) as meter:
        for target, path in placed.items():
            fetch_file(client, f"{base}/files/{quote(path)}", folder, target, by_path[path]["sha256"])
            done += by_path[path]["size_bytes"]
            meter(done, total)
    for path, text in texts.items():
        (folder / path).write_text(text, encoding="utf-8")
    told = {"release": name, "kind": "triton", "folder": str(folder), "digest": release["digest"], "files": len(placed)}
    lines = [
        f"{name} is version {number} of {manifest['model']} in {folder}: {len(placed)} files, {size_text(total)}, every digest checked.",
        f"Next: tritonserver --model-repository {folder}",
    ]
    output.result(told, lines)
    return exits.OK


def _refuse_another_config(folder: Path, texts: dict[str, str], name: str) -> None:
    """Refuses a second config.pbtxt: Triton has a single file for all versions of a model."""
    for path, text in texts.items():
        there = folder / path
        if there.exists() and there.read_text(encoding="utf-8") != text:
            raise refuse(
                f"{there} differs from the file that {name} needs, and Triton has a single file for all versions of a model.",
                "Export it into a folder of its own.",
            )
