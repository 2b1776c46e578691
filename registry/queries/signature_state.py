"""Whether what was signed about a release is what it is: looked at now, with the keys that this installation knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ledger.core.canonical import sha256_of
from registry.core import oms
from registry.models import Attestation, Release
from registry.signing import installation_keys
from registry.signing.installation_keys import KnownKey
from registry.signing.public_keys import signer_of


@dataclass(frozen=True)
class SignatureState:
    """One signed statement. `wrong` is empty where it was verified just now, with the key `key_id`."""

    predicate_type: str
    about: str
    key_id: str
    is_current_key: bool
    made_at: datetime
    wrong: str


def signatures_of(release: Release) -> list[SignatureState]:
    """Every signed statement about the release, the newest first, each checked now. One query."""
    keys = [key for key in installation_keys.known_keys() if key.use is installation_keys.Use.RELEASES]
    return [_state(row, release, keys) for row in release.attestations.order_by("-pk")]


def wrong_manifest_of(release: Release) -> str:
    """Why the stored manifest is not the one that the release's digest names; empty where it is."""
    found = sha256_of(release.manifest.encode())
    return (
        ""
        if found == release.digest
        else f"The stored manifest hashes to {found}, and the release is {release.digest}."
    )


def wrong_signatures(releases: Iterable[Release]) -> dict[UUID, str]:
    """Why the newest signature of each of these releases does not hold, empty where it does; none of a release that has none.

    One query. Rows never change, so what a signature was found to be is kept for the keys that it was checked with.
    """
    by_id = {one.pk: one for one in releases}
    rows = Attestation.objects.filter(release__in=list(by_id), predicate_type=oms.SIGNATURE_TYPE)
    newest = rows.order_by("release_id", "-pk").distinct("release_id")
    keys = tuple(key for key in installation_keys.known_keys() if key.use is installation_keys.Use.RELEASES)
    named = tuple(key.public.key_id for key in keys)
    found = {}
    for row in newest:
        seen = (row.pk, by_id[row.release_id].digest or "", named)
        if seen not in _checked:
            if len(_checked) >= MOST_CHECKED:
                _checked.clear()
            _checked[seen] = _state(row, by_id[row.release_id], keys).wrong
        found[row.release_id] = _checked[seen]
    return found


#: Signatures whose finding this process keeps.
MOST_CHECKED = 5_000
_checked: dict[tuple[int, str, tuple[str, ...]], str] = {}


def _state(row: Attestation, release: Release, keys: Iterable[KnownKey]) -> SignatureState:
    known = list(keys)
    current = {key.public.key_id for key in known if key.is_current}
    signer, wrong = row.key_id, ""
    try:
        bundle = oms.read_bundle(row.bundle)
        signer = signer_of(bundle, [key.public for key in known]).key_id
        if row.predicate_type == oms.SIGNATURE_TYPE:
            signed = oms.read_signed(bundle.payload)
            if signed.digest != release.digest:
                wrong = f"It signs {signed.digest or 'no manifest'}, and this release is {release.digest}."
    except oms.BundleError as error:
        wrong = str(error)
    return SignatureState(row.predicate_type, row.about, signer, signer in current, row.made_at, wrong)
