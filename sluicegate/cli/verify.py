"""`sluicegate release verify`: compares bytes with the sealed release, on a server or, offline, in a folder; and `sluicegate keys`."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accounts.core.quantities import size_text
from ledger.core.canonical import digest_of
from registry.core import oms
from registry.signing.public_keys import PublicKey, read_public_keys, signer_of
from sluicegate.cli import exits
from sluicegate.cli.errors import CommandError, Problem, refuse
from sluicegate.cli.output import Output
from sluicegate.cli.session import connect
from sluicegate.client import Client
from sluicegate.client.folder import chunks_of
from sluicegate.client.names import release_path

ABOUT = """RELEASE: reads every file back from the server, hashes it here, and checks the signature. DIR: a folder that
`release fetch` made, checked offline against its signature (DIR/model.sig) and the public key that --key names; nothing is asked
of any server. Exit 1 if anything differs."""


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The verb below `release`."""
    parser = verbs.add_parser("verify", help="Check a release, or offline a fetched folder", description=ABOUT)
    parser.add_argument("what", metavar="RELEASE|DIR", help="such as sentiment/r2, or a folder on this machine")
    parser.add_argument("--key", type=Path, metavar="PEM", help="public keys to trust: sluicegate keys --out FILE")
    parser.add_argument("--signature", type=Path, metavar="FILE", help="of a folder; DIR/model.sig if left out")
    parser.add_argument(
        "--expect", metavar="RELEASE|DIGEST", help="which release the folder must be: else any that was signed will do"
    )
    parser.set_defaults(run=run)


def add_keys_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("keys", help="Show the public keys that verify releases and reports")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the releases' keys there, for release verify --key"
    )
    parser.add_argument(
        "--rotate",
        choices=("releases", "reports"),
        help="first make a new key for these; earlier signatures stay valid (administrators)",
    )
    parser.set_defaults(run=run_keys)


def run(arguments: argparse.Namespace, output: Output) -> int:
    if Path(arguments.what).is_dir():
        return verify_folder(arguments, output)
    if arguments.signature or arguments.expect:
        raise refuse("--signature and --expect are for a folder.", "Name the folder that `release fetch` made.")
    return verify_release(arguments, output)


# a folder, offline


def verify_folder(arguments: argparse.Namespace, output: Output) -> int:
    folder = Path(arguments.what)
    if arguments.key is None:
        raise refuse(
            "A signature proves nothing without a key that you trust.",
            "Get it once, from a server that you trust: sluicegate keys --out FILE; then add --key FILE.",
        )
    file: Path = arguments.signature or folder / oms.SIGNATURE_FILE
    try:
        bundle = oms.read_bundle(file.read_bytes())
    except OSError as error:
        raise refuse(
            f"The signature {file} cannot be read: {error.strerror}.",
            "Fetch the release again, or name it with --signature.",
        ) from error
    except oms.BundleError as error:
        return _print_result(output, folder, [f"{file}: {error}"], None, None)
    try:
        key = signer_of(bundle, read_keys(arguments.key))
        signed = oms.read_signed(bundle.payload)
    except oms.BundleError as error:
        return _print_result(output, folder, [f"{file}: {error}"], None, None)
    wrong = oms.differences(signed.files, _hashes(folder, file, output))
    if arguments.expect and arguments.expect not in {signed.release, signed.digest}:
        wrong.insert(0, f"It is {signed.release or 'another model'} ({signed.digest}), not {arguments.expect}.")
    return _print_result(output, folder, wrong, signed, key)


def _print_result(
    output: Output, folder: Path, wrong: list[str], signed: oms.Signed | None, key: PublicKey | None
) -> int:
    told = {
        "folder": str(folder),
        "ok": not wrong,
        "wrong": wrong,
        "release": signed.release if signed else None,
        "digest": signed.digest if signed else None,
        "signed_by": key.key_id if key else None,
    }
    good = []
    if signed and key:
        named = f"{signed.release}, {signed.digest}" if signed.release else "a model of another signer"
        good = [f"{folder} matches its signature: {named}, {len(signed.files)} files, by {key.key_id}."]
    output.result(told, wrong or good)
    return exits.FAILED if wrong else exits.OK


def read_keys(file: Path) -> list[PublicKey]:
    """The public keys of a PEM file. Raises CommandError."""
    try:
        return read_public_keys(file.read_text())
    except (OSError, ValueError) as error:
        raise refuse(f"{file} is no file of public keys: {error}.", "Get one: sluicegate keys --out FILE.") from error


def _hashes(folder: Path, signature: Path, output: Output) -> dict[str, str]:
    """sha256 (hex) by path of every file in the folder but the signature; a link counts as changed."""
    files = [path for path in _walk(folder) if not (signature.exists() and path.samefile(signature))]
    total, done = sum(path.stat().st_size for path in files if not path.is_symlink()), 0
    found = {}
    with output.progress("Verifying", is_bytes=True) as meter:
        for path in files:
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file():
                found[name] = "a link or special file"
                continue
            digest = hashlib.sha256()
            try:
                for chunk in chunks_of(path):
                    digest.update(chunk)
                    done += len(chunk)
                    meter(min(done, total), total)
            except OSError as error:
                raise refuse(
                    f"{path} cannot be read: {error.strerror}.", "Make it readable, then verify again."
                ) from error
            found[name] = digest.hexdigest()
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder, followlinks=False):
        for name in sorted(files) + sorted(name for name in folders if Path(root, name).is_symlink()):
            yield Path(root, name)


# a release, from the server


def verify_release(arguments: argparse.Namespace, output: Output) -> int:
    """Reads every file from the server and hashes it here; the server's own word is not taken."""
    with connect(arguments.server) as client:
        base = release_path(arguments.what)
        release = client.get(base)
        wrong = wrong_manifest(release)
        wrong += _wrong_files(client, base, release, output)
        signature, more = _signature(client, base, release, arguments.key)
    wrong += more
    files = release["manifest"]["files"]
    size = size_text(sum(file["size_bytes"] for file in files))
    ok = [f"{arguments.what} matches the sealed release: {release['digest']}, {len(files)} files, {size}.", signature]
    told = {
        "release": arguments.what,
        "digest": release["digest"],
        "ok": not wrong,
        "wrong": wrong,
        "signature": signature,
    }
    output.result(told, wrong or ok)
    return exits.FAILED if wrong else exits.OK


def wrong_manifest(release: dict[str, Any]) -> list[str]:
    """The reason why a server's manifest does not match its digest."""
    found = digest_of(release["manifest"])
    return (
        []
        if found == release["digest"]
        else [f"manifest: it hashes to {found}, the release is named {release['digest']}."]
    )


def _wrong_files(client: Client, base: str, release: dict[str, Any], output: Output) -> list[str]:
    files, wrong, done = release["manifest"]["files"], [], 0
    total = sum(file["size_bytes"] for file in files)
    with output.progress("Verifying", is_bytes=True) as meter:
        for file in files:
            digest = hashlib.sha256()
            for chunk in client.stream(f"{base}/files/{quote(file['path'])}"):
                digest.update(chunk)
                done += len(chunk)
                meter(min(done, total), total)
            found, stated = digest.hexdigest(), file["sha256"].removeprefix("sha256:")
            if found != stated:
                wrong.append(f"{file['path']}: the bytes have the hash {found}, the manifest has {stated}.")
    return wrong


def _signature(client: Client, base: str, release: dict[str, Any], key: Path | None) -> tuple[str, list[str]]:
    """(signer, problems) of the signature, by the keys of `key`, or by the server's keys."""
    try:
        bundle = oms.read_bundle(b"".join(client.stream(f"{base}/signature")))
        trusted = read_keys(key) if key else list(_server_keys(client))
        signer = signer_of(bundle, trusted)
        signed = oms.read_signed(bundle.payload)
    except Problem as problem:
        if problem.status != 404:
            raise
        return problem.message, [problem.message] if key else []
    except oms.BundleError as error:
        return str(error), [f"signature: {error}"]
    if signed.digest != release["digest"]:
        return "", [f"signature: it belongs to {signed.release} ({signed.digest})."]
    source = "" if key else " (a key of the server; pass a trusted key with --key)"
    return f"Signed by {signer.key_id}{source}.", []


def _server_keys(client: Client) -> Iterator[PublicKey]:
    for key in client.get("/keys")["results"]:
        if key["use"] == "releases":
            yield from read_public_keys(key["pem"])


# keys


def run_keys(arguments: argparse.Namespace, output: Output) -> int:
    with connect(arguments.server) as client:
        if arguments.rotate:
            client.post("/keys", {"use": arguments.rotate})
        keys = client.get("/keys")["results"]
    if arguments.out:
        _write_keys(arguments.out, [key["pem"] for key in keys if key["use"] == "releases"])
    rows = ([k["key_id"], k["use"], "signs" if k["is_current"] else "former"] for k in keys)
    output.table(keys, ("key", "of", "now"), rows, empty="There is no key yet.")
    return exits.OK


def _write_keys(file: Path, pems: Iterable[str]) -> None:
    try:
        file.write_text("".join(pems))
    except OSError as error:
        raise CommandError(
            f"{file} cannot be written: {error.strerror}.", exit_code=exits.REFUSED, next_step="Name another file."
        ) from error
