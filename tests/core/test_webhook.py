"""What goes over a webhook's wire, where it may go, and when it is tried again."""

from __future__ import annotations

import ipaddress
import itertools
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core import outbound
from ledger.core.chain import Link
from ledger.core.verbs import EventVerb
from notifications.core import delivery, webhook
from notifications.core.delivery import BACK_OFF_S, ENDED, MOVES, OPEN, DeliveryState, Outcome, after, meant_by, wait_s
from notifications.core.mail import mail_of

EVENT = Link(
    seq=7, at=datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC), act_id="a", verb="rollout.rolled_back", subject_type="rollout",
    subject_id="17", actor="system:engine", from_state="rolling_back", to_state="rolled_back", reason="slow: 4 % of 900",
    facts={"model": "sentiment", "candidate": "r2", "environment": "production", "weight_bp": 500}, prev_hash="b", hash="c",
)  # fmt: skip


class TestSignature:
    def test_the_reference_vector(self) -> None:
        """Source: the test of the reference libraries of standardwebhooks.com."""
        signed = webhook.signatures(
            ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1614265330,
            b'{"test": 2432232314}',
        )
        assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    def test_two_secrets_sign_both(self) -> None:
        one, two = webhook.secret_text(b"1" * 32), webhook.secret_text(b"2" * 32)
        both = webhook.signatures([one, two], "m", 1, b"{}").split(" ")
        assert both == [webhook.signatures([secret], "m", 1, b"{}") for secret in (one, two)]

    @pytest.mark.parametrize("text", ["", "whsec_", "whsec_***", "whsec_MfKQ*9r8G", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    def test_what_is_no_secret(self, text: str) -> None:
        with pytest.raises(ValueError, match="whsec_"):
            webhook.secret_key(text)


class TestBody:
    def test_it_tells_of_the_event_and_is_the_same_each_time(self) -> None:
        body = webhook.body_of(EVENT)
        assert body == webhook.body_of(EVENT)
        assert json.loads(body) == {
            "type": "rollout.rolled_back",
            "timestamp": "2026-03-01T12:00:00.000250+00:00",
            "data": {
                "seq": 7, "act_id": "a", "subject_type": "rollout", "subject_id": "17", "actor": "system:engine",
                "from_state": "rolling_back", "to_state": "rolled_back", "reason": "slow: 4 % of 900", "facts": EVENT.facts,
                "hash": "c",
            },
        }  # fmt: skip

    def test_a_test_delivery_tells_of_no_event(self) -> None:
        assert json.loads(webhook.body_of_test(3, "2026-03-01T12:00:00+00:00", "anna")) == {
            "type": "webhook.test",
            "timestamp": "2026-03-01T12:00:00+00:00",
            "data": {"seq": None, "subject_type": "webhook", "subject_id": "3", "actor": "anna"},
        }

    def test_a_mail_says_the_same(self) -> None:
        subject, text = mail_of(EVENT, why="Because.")
        assert subject == "rollout.rolled_back: sentiment r2 production"
        for said in ("rolling_back → rolled_back", "slow: 4 % of 900", "rollout 17", "system:engine", "weight_bp: 500"):
            assert said in text
        assert text.endswith("-- \nBecause.\n")


#: Those with 2001:0 are Teredo's: a server's address (65.54.227.120), and the client's with every bit turned (RFC 4380).
NEVER = ["169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "0.0.0.0", "::", "224.0.0.1", "240.0.0.1",
         "255.255.255.255", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "ff02::1",
         "2001:0:4136:e378:8000:63bf:5601:5601", "::ffff:0:169.254.169.254", "64:ff9b:1::169.254.169.254",
         "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:0:a9:fea9:fe00:0",
         "2606:4700::5efe:169.254.169.254", "2606:4700::200:5efe:169.254.169.254", "fe80::5efe:8.8.8.8"]  # fmt: skip
PRIVATE = ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "::ffff:127.0.0.1",
           "64:ff9b::7f00:1", "::7f00:1", "::2", "192.0.2.1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
           "fec0::1", "feff:ffff::1", "64:ff9b:1::", "64:ff9b:1::127.0.0.1", "64:ff9b:1:a00:1:200::",
           "::ffff:0:10.1.2.3", "2606:4700::5efe:10.1.2.3", "5f00::1", "3fff::1", "4000::1"]  # fmt: skip
PUBLIC = [
    "64:ff9b:1::8.8.8.8",
    "::ffff:0:8.8.8.8",
    "2606:4700::5efe:8.8.8.8",
    "8.8.8.8",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2001:0:4136:e378:8000:63bf:f7f7:f7f7",
]


class TestAddresses:
    @pytest.mark.parametrize("text", NEVER)
    def test_some_are_never_gone_to(self, text: str) -> None:
        for may_be_private in (True, False):
            assert "never connects to" in outbound.address_problem(
                ipaddress.ip_address(text), may_be_private=may_be_private
            )

    @pytest.mark.parametrize("text", PRIVATE)
    def test_private_ones_take_an_administrator(self, text: str) -> None:
        address = ipaddress.ip_address(text)
        assert "SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE" in outbound.address_problem(address, may_be_private=False)
        assert outbound.address_problem(address, may_be_private=True) == ""

    @pytest.mark.parametrize("text", PUBLIC)
    def test_public_ones_are_free(self, text: str) -> None:
        assert outbound.address_problem(ipaddress.ip_address(text), may_be_private=False) == ""

    @given(st.ip_addresses(v=4))
    def test_an_address_within_another_one_is_judged_alike(self, address: ipaddress.IPv4Address) -> None:
        forms = ["::ffff:{}", "::ffff:0:{}", "64:ff9b::{}", "64:ff9b:1::{}", "2606:4700::5efe:{}"]
        for may_be_private in (True, False):
            alone = outbound.address_problem(address, may_be_private=may_be_private) != ""
            for form in forms if int(address) > 1 else forms[:1]:
                within = ipaddress.IPv6Address(form.format(address))
                assert (outbound.address_problem(within, may_be_private=may_be_private) != "") == alone, form


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "https://example.com/x?y=1",
            "http://example.com:8080",
            "https://[2606:4700::1]/",
            "https://example.com/" + "x" * 480,  # 500 characters
        ],
    )
    def test_fine(self, url: str) -> None:
        assert webhook.url_problem(url, may_be_private=False) == ""

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("ftp://example.com", "https://host/path"),
            ("file:///etc/passwd", "https://host/path"),
            ("gopher://example.com", "https://host/path"),
            ("example.com", "https://host/path"),
            ("https://", "https://host/path"),
            ("https://example.com:0/", "https://host/path"),
            ("https://example.com:99999/", "cannot be read"),
            ("https://[::1", "cannot be read"),
            ("https://me:pass@example.com/", "user and password"),
            ("https://me@example.com/", "user and password"),
            ("https://:pass@example.com/", "user and password"),
            ("https://example.com/#here", "#"),
            ("http://2130706433/", "four decimal numbers"),
            ("http://127.1/", "four decimal numbers"),
            ("http://0x7f.1./", "four decimal numbers"),
            ("https://example.com/a b", "blanks"),
            ("https://exämple.com/", "ASCII"),
            ("https://example.com/\r\nHost: x", "blanks"),
            ("https://example.com/" + "x" * 481, "501 characters"),
            ("http://127.0.0.1/", "private"),
            ("http://localhost:8080/", "private"),
            ("http://localhost./", "private"),
            ("http://[::ffff:10.0.0.1]/", "private"),
            ("http://169.254.169.254/latest/meta-data/", "never connects to"),
        ],
    )
    def test_refused(self, url: str, says: str) -> None:
        assert says in webhook.url_problem(url, may_be_private=False)

    @given(st.text(max_size=60))
    def test_any_text_has_an_answer(self, text: str) -> None:
        assert isinstance(webhook.url_problem(f"https://{text}", may_be_private=False), str)


class TestBackOff:
    def test_it_grows_for_about_a_day_and_ends(self) -> None:
        waits = [wait_s(n, 0.5) for n in range(1, len(BACK_OFF_S) + 1)]
        assert (
            waits == list(BACK_OFF_S) == [5, 30, 2 * 60, 10 * 60, 30 * 60, *(hours * 3600 for hours in (1, 2, 4, 8, 8))]
        )
        assert 23 < sum(BACK_OFF_S) / 3600 < 25
        assert all(a <= b for a, b in itertools.pairwise(BACK_OFF_S))
        assert wait_s(len(BACK_OFF_S) + 1, 0.5) is None

    @given(st.integers(1, len(BACK_OFF_S)), st.floats(0, 1, exclude_max=True))
    def test_it_is_spread_by_a_fifth(self, attempts: int, chance: float) -> None:
        waited = wait_s(attempts, chance)
        assert waited is not None
        assert 0.8 * BACK_OFF_S[attempts - 1] <= waited <= 1.2 * BACK_OFF_S[attempts - 1]

    def test_a_small_chance_is_a_short_wait(self) -> None:
        assert [wait_s(1, chance) for chance in (0.0, 0.25, 0.75)] == pytest.approx([4.0, 4.5, 5.5])

    def test_a_receiver_may_ask_for_more_time_but_not_for_ever(self) -> None:
        assert wait_s(1, 0.5, asked_s=60) == 60
        assert wait_s(1, 0.5, asked_s=1e9) == 3600
        assert wait_s(6, 0.5, asked_s=60) == 3600

    def test_where_a_delivery_goes(self) -> None:
        assert after(1, Outcome(), 0.5) == (DeliveryState.DELIVERED, 0.0)
        assert after(1, Outcome("no", 500), 0.5) == (DeliveryState.FAILED, 5.0)
        assert after(11, Outcome("no", 500), 0.5) == (DeliveryState.GAVE_UP, 0.0)
        assert after(1, Outcome("no", 410), 0.5) == (DeliveryState.GAVE_UP, 0.0)

    def test_every_state_is_open_or_ended_and_open_ones_end(self) -> None:
        assert {*OPEN, *ENDED} == set(DeliveryState) == set(MOVES)
        assert not {*OPEN} & {*ENDED}
        assert all(MOVES[state] == {*ENDED, DeliveryState.FAILED} for state in OPEN)
        assert all(MOVES[state] == {DeliveryState.PENDING} for state in ENDED)


class TestPatterns:
    def test_what_they_mean(self) -> None:
        everything = [verb.value for verb in EventVerb]
        assert meant_by(["*"]) == everything
        assert meant_by(["rollout.*"]) == [verb for verb in everything if verb.startswith("rollout.")]
        assert meant_by(["rollout.stuck", "rollout.held", "rollout.stuck"]) == ["rollout.held", "rollout.stuck"]
        assert meant_by([]) == []

    @pytest.mark.parametrize(
        ("pattern", "says"),
        [
            ("rollout.exploded", "rollout.stuck"),
            ("rollout", "rollout.*"),
            ("rollouts.*", "one of"),
            ("", "one of"),
            (".*", "one of"),
            ("rollout.r*", "rollout.rolled_back"),
        ],
    )
    def test_what_means_nothing_says_what_to_write(self, pattern: str, says: str) -> None:
        assert meant_by([pattern]) == []
        assert says in delivery.pattern_problem(pattern)

    def test_what_means_something_has_no_problem(self) -> None:
        assert all(delivery.pattern_problem(pattern) == "" for pattern in ("*", "rollout.*", "rollout.stuck"))
