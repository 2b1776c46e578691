"""`POST /tokens:exchange`: what a CI job's identity token gets, and every way in which it gets nothing. A real issuer on loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from accounts.actions import issuers as issuer_actions
from accounts.actions import token_rules
from accounts.models import Issuer as IssuerRow
from accounts.models import Token, TokenRule, UsedIdToken
from ledger.core.errors import Invalid
from ledger.models import Event
from tests.support.servers.issuer import GITLAB, Issuer, claims_of, signed_with_public_key, unsigned
from tests.support.worlds.factories import make_model, make_team, make_user
from tests.support.worlds.issuer_setup import GITHUB_RULE, SYSTEM, configured, rule_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def row(issuer: Issuer) -> IssuerRow:
    return configured(issuer)


def exchange(id_token: str, **more: Any) -> Any:
    return Client().post("/api/v1/tokens:exchange", {"id_token": id_token, **more}, content_type="application/json")


def with_token(token: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {token}"})


class TestGiven:
    def test_a_job_gets_a_short_token_of_the_rules_scope(self, issuer: Issuer, row: IssuerRow) -> None:
        make_model("ranker", team=make_team("search"))
        make_model("other", team=make_team("search"))
        rule = rule_for(row, models=["ranker"], verbs=["release.push"], life_s=1200)
        answer = exchange(issuer.github_token())
        given = answer.json()
        assert (answer.status_code, given["username"], given["rule"]) == (201, "robot", rule.pk)
        assert given["verbs"] == ["read", "release.push"] and given["models"] == ["ranker"]
        assert answer["Cache-Control"] == "no-store"
        client = with_token(given["token"])
        assert client.get("/api/v1/models/ranker").status_code == 200
        assert client.get("/api/v1/models/other").status_code in (403, 404)
        token = Token.objects.get(user__username="robot")
        assert token.expires_at is not None
        left = token.expires_at - timezone.now()
        assert timedelta(minutes=15) < left <= timedelta(minutes=20)

    def test_the_event_tells_the_claims(self, issuer: Issuer, row: IssuerRow) -> None:
        rule = rule_for(row)
        exchange(issuer.github_token(long="x" * 5000, deep={"a": [1]}))
        event = Event.objects.get(verb="token.exchanged")
        assert event.facts["rule"] == rule.pk and event.facts["issuer"] == issuer.url
        assert event.facts["claims"]["run_id"] == "99" and len(event.facts["claims"]["long"]) == 300
        assert "sg_" not in str(event.facts)

    def test_gitlabs_strings_and_booleans(self, issuer: Issuer) -> None:
        row = configured(issuer, kind="gitlab")
        rule_for(row, claims={"project_id": "22", "ref_protected": "true"})
        assert exchange(issuer.gitlab_token()).status_code == 201
        assert exchange(issuer.gitlab_token(ref_protected=True, project_id=22)).status_code == 201
        assert exchange(issuer.gitlab_token(ref_protected="false")).json()["code"] == "no_rule_met"

    def test_of_several_the_oldest_or_the_one_named(self, issuer: Issuer, row: IssuerRow) -> None:
        first, second = rule_for(row), rule_for(row, robot="second", title="second")
        assert exchange(issuer.github_token()).json()["rule"] == first.pk
        assert exchange(issuer.github_token(), rule=second.pk).json()["rule"] == second.pk
        assert exchange(issuer.github_token(), rule=second.pk + 1).json()["code"] == "no_rule_met"

    def test_a_rule_of_before_gives_nothing_that_people_answer_for(self, issuer: Issuer, row: IssuerRow) -> None:
        rule = rule_for(row)
        TokenRule.objects.filter(pk=rule.pk).update(scope_verbs=["read", "release.push", "rollout.approve"])
        assert exchange(issuer.github_token()).json()["verbs"] == ["read", "release.push"]
        assert "rollout.approve" not in Token.objects.get().scope_verbs

    def test_it_makes_no_token_for_itself(self, issuer: Issuer, row: IssuerRow) -> None:
        rule_for(row)
        client = with_token(exchange(issuer.github_token()).json()["token"])
        answer = client.post("/api/v1/users/robot/tokens", {"name": "longer"}, content_type="application/json")
        assert answer.status_code == 403
        assert Token.objects.count() == 1


class TestRefused:
    @pytest.mark.parametrize(
        ("claims", "status", "code"),
        [
            ({"aud": "https://github.com/acme"}, 401, "id_token_refused"),
            ({"aud": ["https://sluicegate.example"]}, 401, "id_token_refused"),
            ({"exp": 1000, "iat": 900}, 401, "id_token_refused"),
            ({"exp": int(time.time()) + 90_000}, 401, "id_token_refused"),
            ({"exp": float("inf")}, 401, "id_token_refused"),
            ({"exp": float("nan")}, 401, "id_token_refused"),
            ({"sub": None}, 401, "id_token_refused"),
            ({"iss": "https://elsewhere.example"}, 401, "issuer_unknown"),
            ({"iss": "\0"}, 401, "issuer_unknown"),
            ({"ref": "refs/pull/7/merge"}, 403, "no_rule_met"),
            ({"ref": "refs/heads/main2"}, 403, "no_rule_met"),
            ({"repository_id": "4712"}, 403, "no_rule_met"),
            ({"repository_id": None}, 403, "no_rule_met"),
            ({"repository_id": {"a": "4711"}}, 403, "no_rule_met"),
        ],
    )
    def test_a_token_that_is_not_right(
        self, issuer: Issuer, row: IssuerRow, claims: dict[str, Any], status: int, code: str
    ) -> None:
        rule_for(row)
        answer = exchange(issuer.github_token(**claims))
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.content
        assert not Token.objects.exists()

    def test_one_that_nobody_signed_and_one_by_the_public_key(self, issuer: Issuer, row: IssuerRow) -> None:
        rule_for(row)
        key = issuer.rotate(algorithm="RS256")
        for forged in (unsigned(claims_of(issuer)), signed_with_public_key(key, claims_of(issuer))):
            assert exchange(forged).json()["code"] == "id_token_refused"

    @pytest.mark.parametrize("text", ["", "x", "a.b.c", "é", "\0", "x" * 100_000, "sg_" + "a" * 43])
    def test_what_is_no_token(self, row: IssuerRow, text: str) -> None:
        answer = exchange(text)
        assert (answer.status_code, answer.json()["code"]) == (401, "id_token_refused")

    def test_a_second_time(self, issuer: Issuer, row: IssuerRow) -> None:
        rule_for(row)
        token, nameless = issuer.github_token(), issuer.github_token(jti=None)
        assert [exchange(token).status_code, exchange(nameless).status_code] == [201, 201]
        for again in (token, nameless):
            answer = exchange(again)
            assert (answer.status_code, answer.json()["code"]) == (401, "id_token_used")
        assert Token.objects.count() == 2

    def test_one_that_meets_no_rule_is_not_used_up(self, issuer: Issuer, row: IssuerRow) -> None:
        token = issuer.github_token()
        assert exchange(token).json()["code"] == "no_rule_met"
        rule_for(row)
        assert exchange(token).status_code == 201

    def test_used_ones_are_forgotten_when_they_have_ended(self, issuer: Issuer, row: IssuerRow) -> None:
        rule_for(row)
        exchange(issuer.github_token())
        UsedIdToken.objects.update(ends_at=timezone.now() - timedelta(seconds=1))
        exchange(issuer.github_token())
        assert UsedIdToken.objects.count() == 1

    def test_an_issuer_that_is_away(self, issuer: Issuer, row: IssuerRow) -> None:
        rule_for(row)
        token = issuer.github_token()
        issuer.leave()
        answer = exchange(token)
        assert (answer.status_code, answer.json()["code"]) == (503, "issuer_away")

    def test_an_issuer_that_is_for_people_alone(self, issuer: Issuer, row: IssuerRow) -> None:
        rule_for(row)
        issuer_actions.change_issuer(actor=SYSTEM, issuer=row, expected_version=1, changes={"audience": ""})
        assert exchange(issuer.token(aud="")).json()["code"] == "issuer_unknown"

    def test_a_robot_that_became_a_person_or_left(self, issuer: Issuer, row: IssuerRow) -> None:
        rule = rule_for(row)
        rule.user.set_password("a long pass phrase")
        rule.user.save()
        assert exchange(issuer.github_token()).json()["code"] == "no_robot"
        rule.user.set_unusable_password()
        rule.user.is_active = False
        rule.user.save()
        assert exchange(issuer.github_token()).json()["code"] == "user_inactive"
        assert not Token.objects.exists()


class TestShut:
    """Turning off ends what was given, at once."""

    @pytest.mark.parametrize("what", ["rule off", "rule changed", "rule deleted", "issuer off"])
    def test_tokens_end(self, issuer: Issuer, row: IssuerRow, what: str) -> None:
        rule = rule_for(row)
        client = with_token(exchange(issuer.github_token()).json()["token"])
        assert client.get("/api/v1/me").status_code == 200
        if what == "rule off":
            token_rules.change_token_rule(actor=SYSTEM, rule=rule, expected_version=1, changes={"is_active": False})
        elif what == "rule changed":
            token_rules.change_token_rule(actor=SYSTEM, rule=rule, expected_version=1, changes={"verbs": ["read"]})
        elif what == "rule deleted":
            token_rules.delete_token_rule(actor=SYSTEM, rule=rule, expected_version=1)
        else:
            issuer_actions.change_issuer(actor=SYSTEM, issuer=row, expected_version=1, changes={"is_active": False})
        assert client.get("/api/v1/me").status_code == 401
        codes = {"rule off": "no_rule_met", "rule deleted": "no_rule_met", "issuer off": "issuer_unknown"}
        answer = exchange(issuer.github_token())
        assert answer.json().get("code") == codes.get(what)


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_gets_a_token(issuer: Issuer) -> None:
    rule_for(configured(issuer))
    token = issuer.github_token()

    def once(_: int) -> int:
        try:
            status: int = exchange(token).status_code
            return status
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        statuses = sorted(pool.map(once, range(4)))
    assert statuses == [201, 401, 401, 401] and Token.objects.count() == 1


class TestRulesThatAreRefused:
    @pytest.mark.parametrize(
        ("kind", "claims", "says"),
        [
            ("github", {}, "any token would do"),
            ("github", [], "any token would do"),
            ("github", {"repository": "acme/ranker", "ref": "refs/heads/main"}, "Nothing in the rule lasts"),
            ("github", {"repository_id": "47*", "ref": "refs/heads/main"}, "Nothing in the rule lasts"),
            ("github", {"repository_id": "4711"}, "any branch"),
            ("github", {"repository_id": "4711", "ref": "refs/*"}, "pull requests"),
            ("github", {"repository_id": "4711", "ref": "*"}, "pull requests"),
            ("github", {"repository_id": "4711", "ref": "refs/pull/7/*"}, "pull requests"),
            ("github", {**GITHUB_RULE, "sub": "repo:acme/ranker:*"}, "form of sub changes"),
            ("github", {**GITHUB_RULE, "actor": "a*b"}, "at the end only"),
            ("github", {**GITHUB_RULE, "actor": ""}, "1 to 500 printable"),
            ("github", {**GITHUB_RULE, "actor": 7}, "1 to 500 printable"),
            ("github", {**GITHUB_RULE, "actor": "a\u202eb"}, "1 to 500 printable"),
            ("github", {**GITHUB_RULE, "<b>": "x"}, "no claim's name"),
            ("github", {**GITHUB_RULE, **{f"c{i}": "x" for i in range(20)}}, "at most 20"),
            ("gitlab", {"project_path": "acme/ranker", "ref_protected": "true"}, "Nothing in the rule lasts"),
            ("gitlab", {"project_id": "22"}, "merge requests"),
            ("gitlab", {"project_id": "22", "ref_protected": "false"}, "anybody may push"),
            ("gitlab", {"project_id": "22", "ref_protected": "false", "environment": "production"}, "anybody may push"),
            ("gitlab", {"project_id": "22", "ref_protected": "*"}, "anybody may push"),
            ("gitlab", {"project_id": "22", "environment": "*"}, "any environment"),
            ("gitlab", {"project_id": "22", "environment": "prod*"}, "any branch"),
            ("github", {"repository_id": "4711", "environment": "*"}, "any environment"),
            ("github", {"repository_id": "4711", "environment": "prod*"}, "any branch"),
            ("github", {"repository_id": "4711", "ref": "refs/heads/*"}, "any branch"),
            ("github", {"repository_id": "4711", "ref": "refs/heads/*", "environment": "prod*"}, "any branch"),
            ("other", {"email": "ci@example.com"}, "Nothing in the rule lasts"),
        ],
    )
    def test_claims(self, issuer: Issuer, kind: str, claims: Any, says: str) -> None:
        root = Client()
        root.force_login(make_user("root", is_admin=True))
        row, _ = configured(issuer, kind=kind), make_user("robot", team="search")
        body = {"title": "x", "claims": claims, "username": "robot", "verbs": ["ci"]}
        answer = root.post(f"/api/v1/issuers/{row.pk}/token-rules", body, content_type="application/json")
        assert answer.status_code == 422 and says in str(answer.json()), answer.content

    @pytest.mark.parametrize(
        ("over", "says"),
        [
            ({"username": "root"}, "a person or an administrator"),
            ({"username": "person"}, "a person or an administrator"),
            ({"username": "nobody"}, "no active user"),
            ({"username": "\0"}, "no active user"),
            ({"verbs": []}, "gives no verb"),
            ({"verbs": ["administer"]}, "No rule gives administer"),
            ({"verbs": ["account.manage"]}, "No rule gives account.manage"),
            ({"verbs": ["rollout.approve"]}, "No rule gives rollout.approve"),
            ({"verbs": ["release.waive"]}, "No rule gives release.waive"),
            ({"verbs": ["rollout.promote_now"]}, "No rule gives rollout.promote_now"),
            ({"verbs": ["release_manager"]}, "No rule gives release.waive"),
            ({"verbs": ["everything"]}, "no verb and no role"),
            ({"models": ["a b"]}, "no model's name"),
            ({"life_s": 60}, "900"),
            ({"life_s": 7200}, "3600"),
            ({"title": ""}, "1 to 100"),
            ({"is_admin": True}, "no such field"),
        ],
    )
    def test_the_rest(self, issuer: Issuer, over: dict[str, Any], says: str) -> None:
        root = Client()
        root.force_login(make_user("root", is_admin=True))
        row, _ = configured(issuer), make_user("robot", team="search")
        make_user("person", password="a long pass phrase")
        body = {"title": "x", "claims": GITHUB_RULE, "username": "robot", "verbs": ["ci"], **over}
        answer = root.post(f"/api/v1/issuers/{row.pk}/token-rules", body, content_type="application/json")
        assert answer.status_code == 422 and says in str(answer.json()), answer.content


class TestWhatWouldThisTokenGet:
    @pytest.fixture
    def root(self) -> Client:
        client = Client()
        client.force_login(make_user("root", is_admin=True))
        return client

    def ask(self, client: Client, **body: Any) -> Any:
        return client.post("/api/v1/tokens:try", body, content_type="application/json")

    def test_each_claim_of_each_rule(self, issuer: Issuer, row: IssuerRow, root: Client) -> None:
        rule_for(row, title="release", claims={**GITHUB_RULE, "environment": "Production", "actor": "ann"})
        rule_for(row, title="branch", claims={"repository_owner_id": "42", "ref": "refs/heads/m*"})
        token = issuer.github_token()
        told = self.ask(root, id_token=token).json()
        assert told["problem"] == "" and told["claims"]["run_id"] == "99"
        assert [(one["rule"]["title"], one["is_met"], one["would_give"]) for one in told["rules"]] == [
            ("release", False, False), ("branch", True, True),
        ]  # fmt: skip
        reasons = {one["name"]: (one["is_met"], one["reason"]) for one in told["rules"][0]["checks"]}
        assert reasons == {
            "actor": (False, "the token has no such claim"),
            "environment": (False, "only upper and lower case differ"),
            "ref": (True, "equal"),
            "repository_id": (True, "equal"),
        }
        assert exchange(token).status_code == 201, "trying used it up"

    def test_claims_without_a_token(self, row: IssuerRow, root: Client) -> None:
        rule_for(row)
        told = self.ask(root, issuer=row.pk, claims={**GITLAB, **GITHUB_RULE}).json()
        assert [one["would_give"] for one in told["rules"]] == [True]

    def test_why_one_is_not_believed(self, issuer: Issuer, row: IssuerRow, root: Client) -> None:
        told = self.ask(root, id_token=issuer.github_token(aud="x")).json()
        assert "another audience" in told["problem"] and told["rules"] == []
        assert (
            "none that programs"
            in self.ask(root, id_token=issuer.github_token(iss="https://x.example")).json()["problem"]
        )
        assert "no JSON object" in self.ask(root, issuer=row.pk, claims=[1]).json()["problem"]

    def test_others_are_told_nothing(self, issuer: Issuer, row: IssuerRow) -> None:
        client = Client()
        client.force_login(make_user("ann", team="search"))
        assert self.ask(client, id_token=issuer.github_token()).status_code == 403
        assert client.get("/api/v1/issuers").status_code == 403
        assert issuer.asked == {}


WIDE = [
    ("github", {"repository_id": "4711", "environment": "*"}, "environment"),
    ("github", {"repository_id": "4711", "ref": "refs/heads/*"}, "ref"),
    ("gitlab", {"project_id": "22", "environment": "*"}, "environment"),
]


def saved_before(row: IssuerRow, wide: dict[str, str], **more: Any) -> TokenRule:
    """A rule of the time in which less was asked of one."""
    rule = rule_for(row, **more)
    TokenRule.objects.filter(pk=rule.pk).update(claims=wide)
    rule.refresh_from_db()
    return rule


class TestSavedWhenLessWasAsked:
    @pytest.mark.parametrize(("kind", "claims", "names"), WIDE)
    def test_it_gives_nothing_and_says_what_to_write(
        self, issuer: Issuer, kind: str, claims: dict[str, str], names: str
    ) -> None:
        row = configured(issuer, kind=kind)
        narrow = GITHUB_RULE if kind == "github" else {"project_id": "22", "ref_protected": "true"}
        rule = saved_before(row, claims, claims=narrow)
        token = issuer.github_token() if kind == "github" else issuer.gitlab_token()
        answer = exchange(token)
        said = answer.json()
        assert (answer.status_code, said["code"], said["rule"]) == (403, "rule_too_wide", rule.pk)
        assert any(names in f"{one['field']} {one['message']} {one['fix']}" for one in said["errors"]), said
        assert not Token.objects.exists() and not UsedIdToken.objects.exists()  # the same one is good once it is mended
        token_rules.change_token_rule(actor=SYSTEM, rule=rule, expected_version=1, changes={"claims": narrow})
        assert exchange(token).status_code == 201

    def test_a_good_one_beside_it_gives_the_token_but_not_in_its_name(self, issuer: Issuer, row: IssuerRow) -> None:
        wide = saved_before(row, WIDE[0][1])
        good = rule_for(row, title="good")
        assert exchange(issuer.github_token(), rule=wide.pk).json()["code"] == "rule_too_wide"
        assert exchange(issuer.github_token()).json()["rule"] == good.pk

    def test_one_that_is_off_says_nothing_and_cannot_be_turned_on(self, issuer: Issuer, row: IssuerRow) -> None:
        wide = saved_before(row, WIDE[0][1])
        off = token_rules.change_token_rule(actor=SYSTEM, rule=wide, expected_version=1, changes={"is_active": False})
        assert exchange(issuer.github_token()).json()["code"] == "no_rule_met"
        with pytest.raises(Invalid, match="Name it in full"):
            token_rules.change_token_rule(actor=SYSTEM, rule=off, expected_version=2, changes={"is_active": True})

    def test_administrators_see_it(self, issuer: Issuer, row: IssuerRow) -> None:
        wide, good = saved_before(row, WIDE[0][1]), rule_for(row, title="good")
        client = Client()
        client.force_login(make_user("root", is_admin=True))
        listed = client.get(f"/api/v1/issuers/{row.pk}/token-rules").json()["results"]
        assert [(one["id"], bool(one["problems"])) for one in listed] == [(wide.pk, True), (good.pk, False)]
        assert {"field", "message", "fix"} == set(listed[0]["problems"][0])
        html = client.get(f"/settings/issuers/{row.pk}/").content.decode()
        assert html.count("Disabled: tokens of other people could meet this rule") == len(listed[0]["problems"])
        tried = client.post("/settings/issuers/try/", {"id_token": issuer.github_token()}).content.decode()
        assert "too wide to give a token" in tried and "gives a token" in tried
