"""Identity tokens (JWT) of issuers: verified by their keys, with algorithms that we name, for the audience that is ours."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jwt
from jwt.exceptions import InvalidTokenError, PyJWKError

from accounts.adapters.issuer_keys import ISSUERS, IssuerCache
from accounts.core.claims import LONGEST_ID_TOKEN_S

#: Never HS…, whose secret would be the public key, never none, and never what the token says alone: (key type, curve) of each.
ALGORITHMS: dict[str, tuple[str, str]] = {
    "RS256": ("RSA", ""),
    "PS256": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "EdDSA": ("OKP", "Ed25519"),
}
LONGEST_TOKEN = 16 * 1024
LEEWAY_S = 60
_LEAST_RSA_BITS = 2048
_REQUIRED = ["iss", "aud", "exp", "iat", "sub"]


class BadIdToken(Exception):
    """The token is not accepted. The message holds the reason, and never the token's content."""


def issuer_named_in(token: str) -> str:
    """The `iss` that the token claims, not yet verified; it selects the issuer's row. Raises BadIdToken."""
    try:
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise BadIdToken(f"an identity token is at most {LONGEST_TOKEN} characters of ASCII")
        named = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except (InvalidTokenError, ValueError, RecursionError):
        raise BadIdToken("it is no JSON Web Token of three parts") from None
    if not isinstance(named, str) or not named:
        raise BadIdToken("it names no issuer (iss)")
    return named


def verified_claims(
    token: str, *, issuer: str, audience: str, takes_list: bool = False, cache: IssuerCache | None = None
) -> dict[str, Any]:
    """The claims of a token that this issuer signed for this audience, and that is of now.

    `takes_list`: the audience may also be a list of it alone, as some issuers write it. Raises BadIdToken, IssuerAway.
    """
    key, algorithm = _key_for(token, (cache or ISSUERS), issuer)
    try:
        claims = jwt.decode(
            token, key, algorithms=[algorithm], audience=audience, issuer=issuer, leeway=LEEWAY_S,
            options={"require": _REQUIRED, "strict_aud": not takes_list},
        )  # fmt: skip
    except (InvalidTokenError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadIdToken(_sentence(error)) from None
    if claims["aud"] not in (audience, [audience]):
        raise BadIdToken("it is for other audiences as well")
    _check_life(claims)
    if not isinstance(claims["sub"], str) or not 1 <= len(claims["sub"]) <= 255 or "\0" in claims["sub"]:
        raise BadIdToken("its sub is no text of 1 to 255 characters")
    return dict(claims)


def _key_for(token: str, cache: IssuerCache, issuer: str) -> tuple[Any, str]:
    """(public key, algorithm): the header may choose among ours, and among those that suit the key."""
    try:
        header = jwt.get_unverified_header(token)
    except (InvalidTokenError, ValueError, RecursionError):
        raise BadIdToken("its header cannot be read, or demands (crit) what is not understood here") from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise BadIdToken(f"its algorithm is {str(algorithm)[:20]!r}; taken are {', '.join(ALGORITHMS)}")
    kind, curve = ALGORITHMS[algorithm]
    fitting = [
        key
        for key in cache.keys(issuer, kid)
        if (kid is None or key.get("kid") == kid)
        and key.get("kty") == kind
        and (not curve or key.get("crv") == curve)
        and key.get("alg", algorithm) == algorithm
    ]
    if len(fitting) != 1:
        named = "the issuer publishes no key of its name (kid) for its algorithm"
        raise BadIdToken(named if kid is not None else "it does not say which of the issuer's keys signed it (kid)")
    return _public(fitting[0], algorithm), algorithm


def _public(told: Mapping[str, Any], algorithm: str) -> Any:
    public = {name: value for name, value in told.items() if name in {"kty", "crv", "n", "e", "x", "y", "kid"}}
    try:
        key = jwt.PyJWK(public, algorithm=algorithm).key
    except (PyJWKError, InvalidTokenError, ValueError, TypeError, KeyError):
        raise BadIdToken("the issuer's key cannot be read") from None
    if getattr(key, "key_size", _LEAST_RSA_BITS) < _LEAST_RSA_BITS and told.get("kty") == "RSA":
        raise BadIdToken(f"the issuer's key has fewer than {_LEAST_RSA_BITS} bits")
    return key


def _check_life(claims: Mapping[str, Any]) -> None:
    begun, ends = claims["iat"], claims["exp"]
    if any(isinstance(at, bool) or not isinstance(at, int | float) for at in (begun, ends)):
        raise BadIdToken("its times are no numbers")
    if ends - begun > LONGEST_ID_TOKEN_S:
        raise BadIdToken(f"it lives longer than {LONGEST_ID_TOKEN_S // 3600} hours")
    if begun > time.time() + LEEWAY_S:
        raise BadIdToken("it is from the future: compare the clocks")


def _sentence(error: BaseException) -> str:
    known = {
        "ExpiredSignatureError": "it has expired",
        "InvalidAudienceError": "it is for another audience (aud)",
        "InvalidIssuerError": "it is of another issuer (iss)",
        "InvalidSignatureError": "its signature is not the issuer's",
        "ImmatureSignatureError": "it is not valid yet: compare the clocks",
    }
    missing = getattr(error, "claim", None)
    if missing is not None and type(error).__name__ == "MissingRequiredClaimError":
        return f"it lacks the claim {missing}"
    return known.get(type(error).__name__, "it cannot be verified")
