"""Signatures on digests, with this installation's own Ed25519 key."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

#: Signed before the digest, so that a signature made here means nothing elsewhere.
_CONTEXT = b"sluicegate/digest/v1\n"


def sign(digest: str) -> tuple[str, str]:
    """(signature in base64, key id) over a digest such as `sha256:<64 hex>`. Makes the key on first use."""
    key = _private_key()
    return base64.b64encode(key.sign(_CONTEXT + digest.encode())).decode(), _key_id(key.public_key())


def verify(digest: str, signature_b64: str, key_id: str) -> bool:
    """Whether this installation's key signed this digest; False for any other key, and where there is none: looking makes none."""
    if not Path(settings.SIGNING_KEY_FILE).exists():
        return False
    public = _private_key().public_key()
    if key_id != _key_id(public):
        return False
    try:
        public.verify(base64.b64decode(signature_b64, validate=True), _CONTEXT + digest.encode())
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def public_key_pem() -> str:
    """The public key, for whoever verifies elsewhere."""
    return _private_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _key_id(public: Ed25519PublicKey) -> str:
    """`ed25519:` and the first 16 hex digits of the sha256 of the raw public key."""
    return f"ed25519:{hashlib.sha256(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]}"


def _private_key() -> Ed25519PrivateKey:
    path = Path(settings.SIGNING_KEY_FILE)
    if not path.exists():
        _make_key(path)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ImproperlyConfigured(
            f"SLUICEGATE_SIGNING_KEY_FILE={path} is not a readable PEM private key: {error}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ImproperlyConfigured(f"SLUICEGATE_SIGNING_KEY_FILE={path} is not an Ed25519 key.")
    return key


def _make_key(path: Path) -> None:
    """Writes a new key with mode 0600. Of two processes that start together, one key stands."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    handle, temporary = tempfile.mkstemp(dir=path.parent)  # mkstemp gives 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
