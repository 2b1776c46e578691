"""OpenSSF Model Signing bundles: what is written is read again, and whatever contradicts itself is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from ledger.core.canonical import canonical_bytes, digest_of
from registry.core.oms import (
    PAYLOAD_TYPE,
    Bundle,
    BundleError,
    differences,
    payload_of,
    read_bundle,
    read_signed,
    read_statement,
    statement_of,
    to_sign,
    write_bundle,
)

A, B, C = "a" * 64, "b" * 64, "c" * 64
MANIFEST: dict[str, Any] = {
    "model": "m",
    "files": [{"path": "a.b/x", "sha256": A}, {"path": "a/y", "sha256": B}, {"path": "a/b/z", "sha256": C}],
}
BUNDLE = Bundle(b'{"x":1}', b"\x00\x01\xff", "d" * 64)


def statement(**predicate: Any) -> dict[str, Any]:
    made = statement_of(manifest=MANIFEST, digest=digest_of(MANIFEST), release_name="r3")
    made["predicate"] |= predicate
    return made


def signed(made: dict[str, Any]) -> Any:
    return read_signed(payload_of(made))


def test_a_bundle_is_read_as_it_was_written() -> None:
    assert read_bundle(write_bundle(BUNDLE)) == BUNDLE == read_bundle(write_bundle(BUNDLE).encode())


def test_what_the_key_signs_is_dsses_pre_authentication_encoding() -> None:
    """The example of DSSE v1.0.0, with this payload type."""
    assert to_sign(b"hello world") == b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"
    assert len(PAYLOAD_TYPE) == 28


def test_a_statement_names_the_files_in_the_order_of_the_stock_signer() -> None:
    made = statement()
    assert [one["name"] for one in made["predicate"]["resources"]] == ["a/b/z", "a/y", "a.b/x"]
    root = hashlib.sha256(bytes.fromhex(C + B + A)).hexdigest()
    assert made["subject"] == [{"name": "m", "digest": {"sha256": root}}]
    assert made["predicate"]["serialization"] == {
        "method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": ["model.sig"],
    }  # fmt: skip
    assert payload_of(made) == canonical_bytes(made)


def test_what_was_signed_is_read_with_its_manifest() -> None:
    found = signed(statement())
    assert found.files == {"a.b/x": A, "a/y": B, "a/b/z": C} and found.manifest == MANIFEST
    assert (found.release, found.digest) == ("m/r3", digest_of(MANIFEST))


def test_a_bundle_of_somebody_else_has_files_and_no_release() -> None:
    found = signed(statement(sluicegate=None))
    assert (found.release, found.digest, found.manifest, len(found.files)) == ("", "", {}, 3)
    other = statement()
    del other["predicate"]["sluicegate"]
    assert signed(other) == found
    assert signed(statement(sluicegate={"note": 1})) == found


def changed(made: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(made))
    inside: Any = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = to
    return copy


MANY = [{"path": "a.b/x", "sha256": A}]


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("predicateType",), "other", "a statement of type other"),
        (("predicate", "serialization", "method"), "shards", "something else than the sha256 of whole files"),
        (("predicate", "serialization", "hash_type"), "blake2b", "something else than the sha256 of whole files"),
        (("predicate", "resources", 0, "algorithm"), "sha512", "a/b/z is signed by its sha512"),
        (("predicate", "resources", 0, "digest"), B, "not the one that its subject's digest names"),
        (("predicate", "resources", 0, "name"), "a/y", "not the one that its subject's digest names"),
        (("subject", 0, "digest", "sha256"), A, "not the one that its subject's digest names"),
        (("subject",), [], "not a signature of a model (not enough values to unpack (expected 1, got 0))"),
        (("subject",), [{"digest": {}}], "not a signature of a model (no 'sha256')"),
        (("predicate",), None, "not a signature of a model"),
        (("predicate", "sluicegate"), "text", "not a signature of a model"),
        (("predicate", "sluicegate", "digest"), "sha256:" + A, "does not have the digest that it names"),
    ],
)
def test_a_statement_that_contradicts_itself(path: tuple[Any, ...], to: Any, says: str) -> None:
    with pytest.raises(BundleError) as caught:
        signed(changed(statement(), *path, to=to))
    assert says in str(caught.value) and str(caught.value).endswith(".")


def test_a_manifest_of_other_files_than_are_signed_is_refused() -> None:
    other = {"model": "m", "files": MANY}
    with pytest.raises(BundleError, match="lists other files than it signs"):
        signed(statement(sluicegate={"release": "m/r3", "digest": digest_of(other), "manifest": other}))


def test_a_statement_of_another_kind() -> None:
    assert read_statement(payload_of(statement())) == statement()
    with pytest.raises(BundleError, match="What is signed is a x, not a https://in-toto.io"):
        read_statement(b'{"_type": "x"}')
    for payload in (b"", b"[]", b"{}", b"\xff", b"7"):
        with pytest.raises(BundleError, match="not an in-toto statement"):
            read_statement(payload)


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("mediaType",), "x", "It is a x, not a application/vnd.dev.sigstore.bundle"),
        (("dsseEnvelope", "payloadType"), "x", "It carries a x, not a application/vnd.in-toto"),
        (("dsseEnvelope", "signatures"), [], "not a Sigstore bundle with one signature"),
        (("dsseEnvelope", "signatures"), [{"sig": "AA=="}, {"sig": "AA=="}], "not a Sigstore bundle with one"),
        (("dsseEnvelope", "payload"), "AA==!", "not a Sigstore bundle"),
        (("dsseEnvelope", "signatures"), [{"sig": "AA==!"}], "not a Sigstore bundle"),
        (("verificationMaterial",), {"certificate": {}}, "one signature by a key (no 'publicKey')"),
        (("verificationMaterial", "publicKey"), None, "not a Sigstore bundle"),
        (("dsseEnvelope",), 5, "not a Sigstore bundle"),
    ],
)
def test_a_bundle_that_is_none(path: tuple[Any, ...], to: Any, says: str) -> None:
    with pytest.raises(BundleError) as caught:
        read_bundle(json.dumps(changed(json.loads(write_bundle(BUNDLE)), *path, to=to)))
    assert says in str(caught.value)
    for text in ("", "[]", "7"):
        with pytest.raises(BundleError, match="not a Sigstore bundle"):
            read_bundle(text)


def test_a_hint_may_be_missing() -> None:
    document = json.loads(write_bundle(BUNDLE))
    assert base64.b64decode(document["dsseEnvelope"]["payload"]) == BUNDLE.payload
    for hint in ({}, {"hint": None}, {"hint": ""}):
        found = read_bundle(json.dumps(changed(document, "verificationMaterial", "publicKey", to=hint)))
        assert found == Bundle(BUNDLE.payload, BUNDLE.signature, "")


def test_each_file_that_differs_has_a_sentence() -> None:
    assert differences({"a": A, "b": B, "c": C}, {"a": A, "b": C, "d": A}) == [
        f"b was changed: it hashes to {C}, and {B} was signed.",
        "c is missing.",
        "d is not signed: it was added.",
    ]
    assert differences({"a": A}, {"a": A}) == differences({}, {}) == []
