"""OpenSSF Model Signing: what is signed of a release, and the file that carries the signature.

    Sigstore bundle v0.3  >  DSSE envelope  >  in-toto Statement v1  >  predicate model_signing/signature/v1.0

The statement is made from the digests that the manifest holds, so no byte is read again. Beside what the standard wants,
the predicate carries the whole manifest: runtime image, serving configuration, envelope and provenance are signed too.
Verifiers of the standard ignore members that they do not know.

Source: OMS v1.0 as model-signing 1.1.1 reads it; DSSE v1.0.0 protocol; in-toto Statement v1. Only the method `files`: the
stock verifier of 1.1.1 cannot read back the method `shards`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.core.canonical import canonical_bytes, digest_of

BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
SIGNATURE_TYPE: Final = "https://model_signing/signature/v1.0"
#: The signature's own name inside a release folder: the one file that is not signed.
SIGNATURE_FILE: Final = "model.sig"


class BundleError(ValueError):
    """The file is no such bundle, or what it says contradicts itself. The message is a sentence."""


@dataclass(frozen=True)
class Bundle:
    """A signature and what was signed. `key_hint` is the sha256 (hex) of the signer's public key in PEM."""

    payload: bytes
    signature: bytes
    key_hint: str


@dataclass(frozen=True)
class Signed:
    """What a bundle of a release says: each file's sha256 (hex) by path, which release, and its manifest.

    `manifest` and `release` are empty in a bundle that somebody else made.
    """

    files: Mapping[str, str]
    release: str  # sentiment/r14
    digest: str  # sha256:<64 hex> of the manifest
    manifest: Mapping[str, Any]


def statement_of(*, manifest: Mapping[str, Any], digest: str, release_name: str) -> dict[str, Any]:
    """The statement that is signed for a sealed release. `release_name` is r14."""
    files = sorted(manifest["files"], key=lambda file: file["path"].split("/"))  # the order of the stock signer
    resources = [{"name": f["path"], "algorithm": "sha256", "digest": f["sha256"]} for f in files]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": manifest["model"], "digest": {"sha256": _root_of(resources)}}],
        "predicateType": SIGNATURE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE_FILE],
            },
            "resources": resources,
            "sluicegate": {"release": f"{manifest['model']}/{release_name}", "digest": digest, "manifest": manifest},
        },
    }


def to_sign(payload: bytes) -> bytes:
    """The bytes that the key signs for a payload. Source: DSSE v1.0.0, PAE."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def payload_of(statement: Mapping[str, Any]) -> bytes:
    """The statement as it is signed: canonical JSON."""
    return canonical_bytes(statement)


def write_bundle(bundle: Bundle) -> str:
    """The bundle's JSON text."""
    document = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": bundle.key_hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(bundle.payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(bundle.signature).decode(), "keyid": ""}],
        },
    }
    return canonical_bytes(document).decode()


def read_bundle(text: str | bytes) -> Bundle:
    """The bundle of a JSON text. Raises BundleError. Nothing is verified yet."""
    try:
        document = json.loads(text)
        if document["mediaType"] != BUNDLE_TYPE:
            raise BundleError(f"It is a {document['mediaType']}, not a {BUNDLE_TYPE}.")
        envelope = document["dsseEnvelope"]
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise BundleError(f"It carries a {envelope['payloadType']}, not a {PAYLOAD_TYPE}.")
        (signature,) = envelope["signatures"]
        hint = document["verificationMaterial"]["publicKey"].get("hint") or ""
        return Bundle(
            base64.b64decode(envelope["payload"], validate=True),
            base64.b64decode(signature["sig"], validate=True),
            str(hint),
        )
    except BundleError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise BundleError(f"It is not a Sigstore bundle with one signature by a key ({_message(error)}).") from None


def read_statement(payload: bytes) -> dict[str, Any]:
    """The in-toto statement of a payload that was verified. Raises BundleError."""
    try:
        statement = json.loads(payload)
        if statement["_type"] != STATEMENT_TYPE:
            raise BundleError(f"What is signed is a {statement['_type']}, not a {STATEMENT_TYPE}.")
    except BundleError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"What is signed is not an in-toto statement ({_message(error)}).") from None
    found: dict[str, Any] = statement
    return found


def read_signed(payload: bytes) -> Signed:
    """What a verified payload says of a release. Raises BundleError, also where its parts contradict each other."""
    statement = read_statement(payload)
    try:
        if statement["predicateType"] != SIGNATURE_TYPE:
            raise BundleError(f"It is a statement of type {statement['predicateType']}, not a model's signature.")
        predicate = statement["predicate"]
        if predicate["serialization"]["method"] != "files" or predicate["serialization"]["hash_type"] != "sha256":
            raise BundleError("It signs something else than the sha256 of whole files.")
        resources = predicate["resources"]
        files = {resource["name"]: resource["digest"] for resource in resources}
        (subject,) = statement["subject"]
        if len(files) != len(resources) or subject["digest"]["sha256"] != _root_of(resources):
            raise BundleError("Its list of files is not the one that its subject's digest names.")
        own = predicate.get("sluicegate") or {}
        return _checked(Signed(files, own.get("release", ""), own.get("digest", ""), own.get("manifest") or {}))
    except BundleError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"It is not a signature of a model ({_message(error)}).") from None


def _checked(signed: Signed) -> Signed:
    """The same, once manifest, digest and files agree."""
    if not signed.manifest:
        return signed
    if digest_of(signed.manifest) != signed.digest:
        raise BundleError("The manifest in it does not have the digest that it names.")
    if {file["path"]: file["sha256"] for file in signed.manifest["files"]} != dict(signed.files):
        raise BundleError("The manifest in it lists other files than it signs.")
    return signed


def differences(signed: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One sentence for each file that is changed, missing or not signed; both sides are sha256 (hex) by path."""
    said = []
    for path in sorted({*signed, *found}):
        if path not in found:
            said.append(f"{path} is missing.")
        elif path not in signed:
            said.append(f"{path} is not signed: it was added.")
        elif signed[path] != found[path]:
            said.append(f"{path} was changed: it hashes to {found[path]}, and {signed[path]} was signed.")
    return said


def _root_of(resources: list[dict[str, str]]) -> str:
    """sha256 over the raw digests, in the order of the list."""
    whole = hashlib.sha256()
    for resource in resources:
        if resource["algorithm"] != "sha256":
            raise BundleError(f"{resource['name']} is signed by its {resource['algorithm']}, not its sha256.")
        whole.update(bytes.fromhex(resource["digest"]))
    return whole.hexdigest()


def _message(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
