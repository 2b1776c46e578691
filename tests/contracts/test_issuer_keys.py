"""Issuers' keys and identity tokens, against a real issuer on loopback: what is believed, and what is refused."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from accounts.adapters import issuer_http
from accounts.adapters.id_tokens import BadIdToken, issuer_named_in, verified_claims
from accounts.adapters.issuer_http import IssuerUnreachable, get_json, url_problem
from accounts.adapters.issuer_keys import IssuerAway, IssuerCache
from ledger.adapters import outbound
from tests.support.servers.issuer import AUDIENCE, Issuer, claims_of, new_key, signed_with_public_key, unsigned


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> IssuerCache:
    return IssuerCache(now=clock)


def verify(issuer: Issuer, cache: IssuerCache, token: str, **more: Any) -> dict[str, Any]:
    return verified_claims(token, issuer=issuer.url, audience=AUDIENCE, cache=cache, **more)


class TestBelieved:
    @pytest.mark.parametrize("algorithm", ["ES256", "RS256", "EdDSA"])
    def test_a_token_of_each_algorithm(self, issuer: Issuer, cache: IssuerCache, algorithm: str) -> None:
        issuer.rotate(algorithm=algorithm)
        told = verify(issuer, cache, issuer.github_token())
        assert told["repository_id"] == "4711" and told["iss"] == issuer.url == issuer_named_in(issuer.token())

    def test_keys_are_read_once(self, issuer: Issuer, cache: IssuerCache) -> None:
        for _ in range(5):
            verify(issuer, cache, issuer.token())
        assert issuer.asked == {"/.well-known/openid-configuration": 1, "/keys": 1}

    def test_an_audience_in_a_list_of_one_where_that_is_taken(self, issuer: Issuer, cache: IssuerCache) -> None:
        token = issuer.token(aud=[AUDIENCE])
        assert verify(issuer, cache, token, takes_list=True)["sub"] == "job-1"
        with pytest.raises(BadIdToken, match="audience"):
            verify(issuer, cache, token)

    def test_a_key_without_a_name_where_there_is_one(self, issuer: Issuer, cache: IssuerCache) -> None:
        assert verify(issuer, cache, issuer.token(_header={"kid": None}))["sub"] == "job-1"
        issuer.rotate()
        cache.forget(issuer.url)
        with pytest.raises(BadIdToken, match="which of the issuer's keys"):
            verify(issuer, cache, issuer.token(_header={"kid": None}))


class TestRefused:
    @pytest.mark.parametrize(
        ("claims", "says"),
        [
            ({"aud": "somebody-else"}, "another audience"),
            ({"aud": [AUDIENCE, "somebody-else"]}, "audience"),
            ({"aud": None}, "lacks the claim aud"),
            ({"exp": 1_000_000, "iat": 999_000}, "expired"),
            ({"exp": None}, "lacks the claim exp"),
            ({"iat": None}, "lacks the claim iat"),
            ({"sub": None}, "lacks the claim sub"),
            ({"sub": ""}, "sub"),
            ({"sub": "x" * 256}, "sub"),
            ({"sub": "a\0b"}, "sub"),
            ({"iss": "https://elsewhere.example"}, "another issuer"),
            ({"nbf": 9_999_999_999}, "not valid yet"),
        ],
    )
    def test_claims_that_are_not_right(
        self, issuer: Issuer, cache: IssuerCache, claims: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(BadIdToken, match=says):
            verify(issuer, cache, issuer.token(**claims))

    def test_one_that_lives_too_long(self, issuer: Issuer, cache: IssuerCache) -> None:
        now = int(time.time())
        with pytest.raises(BadIdToken, match="longer than 12 hours"):
            verify(issuer, cache, issuer.token(iat=now, exp=now + 12 * 3600 + 1))

    def test_one_from_the_future(self, issuer: Issuer, cache: IssuerCache) -> None:
        now = int(time.time())
        with pytest.raises(BadIdToken, match="not valid yet|future"):
            verify(issuer, cache, issuer.token(iat=now + 600, exp=now + 900))

    def test_no_algorithm(self, issuer: Issuer, cache: IssuerCache) -> None:
        with pytest.raises(BadIdToken, match="its algorithm is 'none'"):
            verify(issuer, cache, unsigned(claims_of(issuer)))

    @pytest.mark.parametrize("algorithm", [[], {}, 7, None])
    def test_an_algorithm_that_is_no_text(self, issuer: Issuer, cache: IssuerCache, algorithm: Any) -> None:
        head, body, _ = unsigned(claims_of(issuer)).split(".")
        told = {"typ": "JWT", "kid": issuer.keys[0].kid, "alg": algorithm}
        head = base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=").decode()
        with pytest.raises(BadIdToken, match="algorithm|header"):
            verify(issuer, cache, f"{head}.{body}.YQ")

    def test_the_public_key_as_a_secret(self, issuer: Issuer, cache: IssuerCache) -> None:
        key = issuer.rotate(algorithm="RS256")
        with pytest.raises(BadIdToken, match="its algorithm is 'HS256'"):
            verify(issuer, cache, signed_with_public_key(key, claims_of(issuer)))

    def test_an_algorithm_that_is_not_the_keys(self, issuer: Issuer, cache: IssuerCache) -> None:
        other = new_key("RS256")
        other.kid = issuer.keys[0].kid
        with pytest.raises(BadIdToken, match="no key of its name"):
            verify(issuer, cache, issuer.token(_key=other))

    def test_somebody_elses_key_of_the_same_name(self, issuer: Issuer, cache: IssuerCache) -> None:
        other = new_key()
        other.kid = issuer.keys[0].kid
        with pytest.raises(BadIdToken, match="signature"):
            verify(issuer, cache, issuer.token(_key=other))

    def test_a_short_rsa_key(self, issuer: Issuer, cache: IssuerCache) -> None:
        issuer.keys = [new_key("RS256", bits=1024)]
        with pytest.warns(Warning, match="below the minimum"):
            token = issuer.token()
        with pytest.raises(BadIdToken, match="fewer than 2048 bits"):
            verify(issuer, cache, token)

    def test_a_header_that_demands_more(self, issuer: Issuer, cache: IssuerCache) -> None:
        with pytest.raises(BadIdToken, match="header"):
            verify(issuer, cache, issuer.token(_header={"crit": ["exp"], "exp": 1}))

    @pytest.mark.parametrize("token", ["", "a.b.c", "sg_abc", "x" * 20_000, "é.é.é", "e30.e30.", "..", "\0"])
    def test_what_is_no_token(self, issuer: Issuer, cache: IssuerCache, token: str) -> None:
        with pytest.raises(BadIdToken):
            issuer_named_in(token)
        with pytest.raises(BadIdToken):
            verify(issuer, cache, token)


class TestKeysThatChange:
    def test_made_up_names_make_one_reading_in_30_s(self, issuer: Issuer, cache: IssuerCache, clock: Clock) -> None:
        verify(issuer, cache, issuer.token())
        clock.at += 31
        for i in range(50):
            with pytest.raises(BadIdToken, match="no key of its name"):
                verify(issuer, cache, issuer.token(_header={"kid": f"made-up-{i}"}))
        assert issuer.asked["/keys"] == 2

    def test_a_new_key_is_taken_after_30_s(self, issuer: Issuer, cache: IssuerCache, clock: Clock) -> None:
        verify(issuer, cache, issuer.token())
        issuer.rotate()
        with pytest.raises(BadIdToken):
            verify(issuer, cache, issuer.token())
        clock.at += 30
        assert verify(issuer, cache, issuer.token())

    def test_a_withdrawn_key_is_refused_after_10_minutes(
        self, issuer: Issuer, cache: IssuerCache, clock: Clock
    ) -> None:
        old = issuer.keys[0]
        verify(issuer, cache, issuer.token())
        issuer.rotate(keeps_old=False)
        assert verify(issuer, cache, issuer.token(_key=old))  # not heard of yet
        clock.at += 600
        with pytest.raises(BadIdToken, match="no key of its name"):
            verify(issuer, cache, issuer.token(_key=old))

    def test_an_issuer_that_is_away_for_an_hour_and_for_a_day(
        self, issuer: Issuer, cache: IssuerCache, clock: Clock
    ) -> None:
        token = issuer.token()
        verify(issuer, cache, token)
        issuer.leave()
        clock.at += 3600
        assert verify(issuer, cache, token)
        assert "does not answer" in cache.problem(issuer.url)
        clock.at += 86400
        with pytest.raises(IssuerAway, match="does not answer"):
            verify(issuer, cache, token)

    @pytest.mark.parametrize(
        ("fault", "says"),
        [
            ("slow", "no whole answer within 0.3 s"),
            ("huge", "more than 256 kB"),
            ("redirect", "redirects"),
            ("bad_status", "answered 500"),
            ("garbage", "no object"),
            ("wrong_issuer", "calls itself"),
        ],
    )
    def test_an_issuer_with_a_fault(self, issuer: Issuer, clock: Clock, fault: str, says: str) -> None:
        issuer.fault = fault
        cache = IssuerCache(get=lambda url: get_json(url, timeout_s=0.3 if fault == "slow" else 20), now=clock)
        with pytest.raises(IssuerAway, match=says):
            verify(issuer, cache, issuer.token())
        with pytest.raises(IssuerUnreachable, match=says):
            cache.read_now(issuer.url)


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example", "ftp://issuer.example", "https://", "https://user:pw@issuer.example", "https://a b",
        "https://issuer.example/#x", "http://127.0.0.1.evil.example", "https://[::1", "https://a:99999999", "file:///etc/passwd",
        "https://exämple.org", "https://169.254.169.254", "https://[fd00:ec2::254]/x", "https://[::ffff:169.254.169.254]",
        "https://100.100.100.200", "https://0.0.0.0", "https://224.0.0.1", "https://2852039166", "https://0xa9.254.43518",
    ],
)  # fmt: skip
def test_addresses_that_are_never_asked(url: str) -> None:
    assert url_problem(url)
    with pytest.raises(IssuerUnreachable):
        issuer_http.get_json(url)


@pytest.mark.parametrize(
    "url", ["https://issuer.example/realms/a", "http://127.0.0.1:8080", "http://localhost/x", "http://[::1]:1"]
)
def test_addresses_that_are(url: str) -> None:
    assert url_problem(url) == ""


def test_a_name_that_leads_to_a_refused_address_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each connection: the name may lead elsewhere after the address was stored."""
    asked: list[str] = []
    monkeypatch.setattr(outbound, "addresses_of", lambda host, port: asked.append(host) or ["169.254.169.254"])
    assert url_problem("https://issuer.example") == ""
    for _ in range(2):
        with pytest.raises(
            IssuerUnreachable, match=r"169\.254\.169\.254 is an address that Sluicegate never connects to"
        ):
            issuer_http.get_json("https://issuer.example")
    assert asked == ["issuer.example"] * 2


def test_a_private_issuer_may_be_asked() -> None:
    """An organisation's own sign-in has a private address as a rule."""
    assert [url_problem(f"https://{host}") for host in ("10.1.2.3", "192.168.1.1", "[fd12::1]")] == [""] * 3
