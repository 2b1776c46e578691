"""Public keys: read from PEM, named by an id, and asked whether they signed something. No settings, no database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from registry.core import oms

_BLOCK = re.compile(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.S)


@dataclass(frozen=True)
class PublicKey:
    """Ed25519 or ECDSA on P-256 with SHA-256. `key_id` is the algorithm and 16 hex digits of a sha256 of the key."""

    key: Ed25519PublicKey | EllipticCurvePublicKey

    @property
    def algorithm(self) -> str:
        return "ed25519" if isinstance(self.key, Ed25519PublicKey) else "ecdsa-p256"

    @property
    def pem(self) -> str:
        return self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def hint(self) -> str:
        """64 hex digits: sha256 of the PEM. Source: model-signing 1.1.1 names the key of a bundle so."""
        return hashlib.sha256(self.pem.encode()).hexdigest()

    @property
    def key_id(self) -> str:
        if isinstance(self.key, Ed25519PublicKey):
            raw = self.key.public_bytes(Encoding.Raw, PublicFormat.Raw)
            return f"ed25519:{hashlib.sha256(raw).hexdigest()[:16]}"
        return f"ecdsa-p256:{self.hint[:16]}"

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Whether the private half of this key signed just these bytes."""
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, ECDSA(SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True


def read_public_keys(text: str) -> list[PublicKey]:
    """Every key of a file of PEM blocks, in its order. Raises ValueError where there is none, or one of another kind."""
    blocks = _BLOCK.findall(text)
    if not blocks:
        raise ValueError("there is no `-----BEGIN PUBLIC KEY-----` in it")
    return [_public_key(block) for block in blocks]


def signer_of(bundle: oms.Bundle, keys: Iterable[PublicKey]) -> PublicKey:
    """Which of the keys signed the bundle. Raises oms.BundleError when none did."""
    known = list(keys)
    named = [key for key in known if key.hint == bundle.key_hint]
    for key in named:
        if key.signed(oms.to_sign(bundle.payload), bundle.signature):
            return key
    if named:
        raise oms.BundleError(f"Its signature is not one of {named[0].key_id} over what it says: it was changed.")
    said = ", ".join(key.key_id for key in known) or "none"
    raise oms.BundleError(
        f"It names the key ecdsa-p256:{bundle.key_hint[:16]}, which is not known here (known: {said})."
    )


def _public_key(pem: str) -> PublicKey:
    key = load_pem_public_key(pem.encode())
    if isinstance(key, Ed25519PublicKey) or (
        isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)
    ):
        return PublicKey(key)
    raise ValueError("a key is neither Ed25519 nor ECDSA on the curve P-256")
