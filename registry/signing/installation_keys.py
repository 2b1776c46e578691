"""This installation's own keys: signatures on reports' digests, and on statements about releases.

Two keys, because two kinds of verifier read what they sign: Ed25519 for the digests of reports, which this installation
verifies itself; ECDSA on P-256 for releases and attestations, because the stock verifier of OpenSSF Model Signing takes no
Ed25519. Keys are read at every use, so that a rotation holds at once in every process. What former keys signed stays valid
for as long as SLUICEGATE_FORMER_KEYS_FILE lists their public halves.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ledger.adapters.files import write_whole
from registry.core import oms
from registry.signing.public_keys import PublicKey, read_public_keys

#: Signed before the digest, so that a signature made here means nothing elsewhere.
_CONTEXT = b"sluicegate/digest/v1\n"
_PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey


class Use(StrEnum):
    """What a key signs."""

    REPORTS = "reports"
    RELEASES = "releases"


_ALGORITHM = {Use.REPORTS: "ed25519", Use.RELEASES: "ecdsa-p256"}
_SETTING = {Use.REPORTS: "SIGNING_KEY_FILE", Use.RELEASES: "RELEASE_KEY_FILE"}


@dataclass(frozen=True)
class KnownKey:
    """A key whose signatures are accepted here. Only the current one of its use signs."""

    use: Use
    is_current: bool
    public: PublicKey


def sign(digest: str) -> tuple[str, str]:
    """(signature in base64, key id) over a digest such as `sha256:<64 hex>`. Makes the key on first use."""
    key = _private_key(Use.REPORTS)
    assert isinstance(key, Ed25519PrivateKey)
    return base64.b64encode(key.sign(_CONTEXT + digest.encode())).decode(), _public(key).key_id


def verify(digest: str, signature_b64: str, key_id: str) -> bool:
    """Whether a key of this installation, the present one or a former one, signed this digest. Looking makes no key."""
    try:
        signature = base64.b64decode(signature_b64, validate=True)
    except (binascii.Error, ValueError):
        return False
    keys = [known.public for known in known_keys() if known.public.key_id == key_id]
    return any(key.signed(_CONTEXT + digest.encode(), signature) for key in keys)


def present_key(use: Use) -> PublicKey:
    """The key that signs now. Makes it on first use."""
    return _public(_private_key(use))


def sign_statement(statement: Mapping[str, Any]) -> tuple[str, str]:
    """(bundle as JSON text, key id) of an in-toto statement, signed with the releases' key. Makes the key on first use."""
    key = _private_key(Use.RELEASES)
    assert isinstance(key, EllipticCurvePrivateKey)
    payload, public = oms.payload_of(statement), _public(key)
    signature = key.sign(oms.to_sign(payload), ECDSA(SHA256()))
    return oms.write_bundle(oms.Bundle(payload, signature, public.hint)), public.key_id


def known_keys() -> list[KnownKey]:
    """The present keys that were made already, then the former ones. Raises ImproperlyConfigured for a broken file."""
    found = [
        KnownKey(use, True, _public(_private_key(use)))
        for use in Use
        if Path(getattr(settings, _SETTING[use])).exists()
    ]
    present = {known.public.key_id for known in found}
    uses = {algorithm: use for use, algorithm in _ALGORITHM.items()}
    former = [key for key in _former_keys() if key.key_id not in present]
    return found + [KnownKey(uses[key.algorithm], False, key) for key in former]


def rotate(use: Use) -> tuple[PublicKey | None, PublicKey]:
    """(the key before, the new one): from now on the new one signs, and the one before is a former key."""
    path = Path(getattr(settings, _SETTING[use]))
    before = _public(_private_key(use)) if path.exists() else None
    if before is not None:  # first: after a crash in between a key is listed twice, but no signature lacks its key
        _remember(before)
        path.unlink()
    return before, _public(_private_key(use))


def _remember(key: PublicKey) -> None:
    path = Path(settings.FORMER_KEYS_FILE)
    text = path.read_text() if path.exists() else ""
    if key.pem not in text:
        _write(path, (text + key.pem).encode(), replace=True)


def _former_keys() -> list[PublicKey]:
    path = Path(settings.FORMER_KEYS_FILE)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ImproperlyConfigured(f"SLUICEGATE_FORMER_KEYS_FILE={path} cannot be read: {error}") from error
    try:
        return read_public_keys(text) if text.strip() else []
    except ValueError as error:
        raise ImproperlyConfigured(f"SLUICEGATE_FORMER_KEYS_FILE={path} is no file of public keys: {error}.") from error


def _public(key: _PrivateKey) -> PublicKey:
    return PublicKey(key.public_key())


def _private_key(use: Use) -> _PrivateKey:
    setting = _SETTING[use]
    path = Path(getattr(settings, setting))
    if not path.exists():
        _write(path, _new_key(use), replace=False)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ImproperlyConfigured(f"SLUICEGATE_{setting}={path} is not a readable PEM private key: {error}") from error
    if use is Use.REPORTS and isinstance(key, Ed25519PrivateKey):
        return key
    if use is Use.RELEASES and isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1):
        return key
    wanted = "an Ed25519 key" if use is Use.REPORTS else "an ECDSA key on the curve P-256"
    raise ImproperlyConfigured(f"SLUICEGATE_{setting}={path} is not {wanted}.")


def _new_key(use: Use) -> bytes:
    key = Ed25519PrivateKey.generate() if use is Use.REPORTS else generate_private_key(SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, *, replace: bool) -> None:
    """For the owner alone. If two processes create a key at once, one wins."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, data, mode=0o600, is_durable=True, keeps_first=not replace)
