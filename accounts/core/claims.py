"""Rules over the claims of an identity token: what each one demands, whether a token meets it, and why not.

A rule is a set of equalities that all have to hold. There are no regular expressions: `*` at a value's end takes any ending.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_CLAIMS = 20
LONGEST_VALUE = 500
#: How long a token lives that an identity token was exchanged for, in seconds: at least, unless said otherwise, and at most.
SHORTEST_LIFE_S, USUAL_LIFE_S, LONGEST_LIFE_S = 900, 900, 3600
#: The longest life of an identity token that is believed, in seconds.
LONGEST_ID_TOKEN_S = 12 * 3600
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")
_PULL = "refs/pull/"


class IssuerKind(StrEnum):
    GITHUB = "github"
    GITLAB = "gitlab"
    OTHER = "other"


#: Claims that name one thing for ever. Names are given up and taken by others; numbers are not.
LASTING: dict[IssuerKind, tuple[str, ...]] = {
    IssuerKind.GITHUB: ("repository_id", "repository_owner_id"),
    IssuerKind.GITLAB: ("project_id", "namespace_id"),
    IssuerKind.OTHER: ("sub",),
}
#: Of these a rule demands one as well: without it, any branch's run gets the token, and anybody's pull request.
BOUND: dict[IssuerKind, tuple[str, ...]] = {
    IssuerKind.GITHUB: ("ref", "environment"),
    IssuerKind.GITLAB: ("ref_protected", "environment"),
    IssuerKind.OTHER: (),
}
#: Claims that these issuers write as a list. Source: https://docs.gitlab.com/ci/secrets/id_token_authentication/ (16.11).
_LISTS: dict[IssuerKind, tuple[str, ...]] = {IssuerKind.GITHUB: (), IssuerKind.GITLAB: ("aud", "groups_direct")}


@dataclass(frozen=True)
class ClaimCheck:
    """One equality of a rule beside what the token has. `found` is None where it has no such claim."""

    name: str
    expected: str
    found: str | None
    is_met: bool
    reason: str


def check_claims(rule: Mapping[str, str], claims: Mapping[str, Any], kind: IssuerKind) -> tuple[ClaimCheck, ...]:
    """What becomes of each equality, by name, for a token of an issuer of this kind."""
    return tuple(_check(name, expected, claims, kind) for name, expected in sorted(rule.items()))


def is_met(rule: Mapping[str, str], claims: Mapping[str, Any], kind: IssuerKind) -> bool:
    """Whether every equality holds. A rule that demands nothing is never met."""
    return bool(rule) and all(check.is_met for check in check_claims(rule, claims, kind))


def _may_be_list(name: str, kind: IssuerKind) -> bool:
    """Whether a claim may have several values, such as groups."""
    return name not in LASTING[kind] if kind is IssuerKind.OTHER else name in _LISTS[kind]


def _check(name: str, expected: str, claims: Mapping[str, Any], kind: IssuerKind) -> ClaimCheck:
    if name not in claims:
        return ClaimCheck(name, expected, None, False, "the token has no such claim")
    if isinstance(claims[name], list) and not _may_be_list(name, kind):
        return ClaimCheck(name, expected, None, False, "it is a list, and the claim is a single value")
    texts = _texts(claims[name])
    shown = ", ".join(texts)[:LONGEST_VALUE]
    if any(_equal(expected, text) for text in texts):
        return ClaimCheck(name, expected, shown, True, "begins so" if expected.endswith("*") else "equal")
    if not texts:
        return ClaimCheck(name, expected, shown, False, "it is neither text nor a list of texts")
    near = any(text.casefold() == expected.casefold() for text in texts)
    return ClaimCheck(name, expected, shown, False, "only upper and lower case differ" if near else "it differs")


def _texts(value: Any) -> list[str]:
    """A claim's values as text; those of a list (groups) one by one."""
    return [text for one in (value if isinstance(value, list) else [value]) if (text := _text(one)) is not None]


def _text(value: Any) -> str | None:
    """GitLab writes `"true"`, others write true: both are the text true. Objects are none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else None


def _equal(expected: str, text: str) -> bool:
    return text.startswith(expected[:-1]) if expected.endswith("*") else text == expected


def rule_problems(rule: Any, kind: IssuerKind, *, is_for_people: bool = False) -> list[dict[str, str]]:
    """Why a rule cannot be saved, as {field, message, fix}. For people's roles (`is_for_people`) no lasting claim is needed:
    who signs in is known by issuer and sub."""
    if not isinstance(rule, Mapping) or not rule:
        return [
            _problem("claims", "The rule demands nothing, so that any token would do.", "Name a claim and its value.")
        ]
    if len(rule) > MOST_CLAIMS:
        return [_problem("claims", f"A rule has at most {MOST_CLAIMS} claims.", "Leave some out.")]
    found = [problem for name, expected in rule.items() for problem in _value_problems(name, expected)]
    return found or ([] if is_for_people else [*_lasting_problems(rule, kind), *_bound_problems(rule, kind)])


def _value_problems(name: Any, expected: Any) -> Iterable[dict[str, str]]:
    where = f"claims.{name}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield _problem(
            "claims",
            f"{name!r:.120} is no claim's name.",
            "Use 1 to 100 letters, digits and _ . : / -, as a token has it, such as repository_id.",
        )
    elif not isinstance(expected, str) or not 1 <= len(expected) <= LONGEST_VALUE or not expected.isprintable():
        yield _problem(
            where, "A value is 1 to 500 printable characters of text.", 'Write numbers and true as text: "42".'
        )
    elif "*" in expected[:-1]:
        yield _problem(where, "* stands at the end only.", "Write what the value begins with, then *.")


def _lasting_problems(rule: Mapping[str, str], kind: IssuerKind) -> Iterable[dict[str, str]]:
    lasting = LASTING[kind]
    if kind is not IssuerKind.OTHER and "sub" in rule:
        yield _problem(
            "claims.sub",
            "The form of sub changes with the issuer's settings and by renaming.",
            f"Demand {' or '.join(lasting)} instead.",
        )
    if not any(name in rule and not rule[name].endswith("*") for name in lasting):
        yield _problem(
            "claims",
            "Nothing in the rule lasts: names can be given up, and taken by somebody else.",
            f"Demand {' or '.join(lasting)} with its whole value.",
        )


def _bound_problems(rule: Mapping[str, str], kind: IssuerKind) -> Iterable[dict[str, str]]:
    bound = BOUND[kind]
    if bound and not any(name in rule and not _is_wide(name, rule[name]) for name in bound):
        yield _problem(
            "claims",
            "The rule takes runs of any branch, those for pull or merge requests too.",
            f"Demand {' or '.join(bound)} as well, and more of it than * takes.",
        )
    if bound and rule.get("environment") == "*":
        yield _problem("claims.environment", "This takes any environment, one made by the run too.", "Name it in full.")
    ref = rule.get("ref", "")
    if kind is IssuerKind.GITHUB and ref.endswith("*") and (_PULL.startswith(ref[:-1]) or ref.startswith(_PULL)):
        yield _problem(
            "claims.ref",
            "This takes runs of pull requests as well.",
            "Begin with a branch below refs/heads/, or with refs/tags/.",
        )
    if kind is IssuerKind.GITLAB and rule.get("ref_protected", "true") != "true":
        yield _problem("claims.ref_protected", "This takes branches that anybody may push to.", 'Demand "true".')


def _is_wide(name: str, expected: str) -> bool:
    """Whether whoever may push can meet it: a run makes an environment by naming it, and a branch below refs/heads/ by pushing."""
    return expected.endswith("*") and (name != "ref" or "refs/heads/".startswith(expected[:-1]))


def life_problem(life_s: int) -> str:
    """Why a token may not live so long, or empty."""
    if SHORTEST_LIFE_S <= life_s <= LONGEST_LIFE_S:
        return ""
    return f"A token of a rule lives {SHORTEST_LIFE_S} to {LONGEST_LIFE_S} seconds."


def _problem(field: str, message: str, fix: str) -> dict[str, str]:
    return {"field": field, "message": message, "fix": fix}


def username_for(claims: Mapping[str, Any], suffix: str, taken: Sequence[str] = ()) -> str:
    """The name of a new account: what the issuer calls the person where that is plain and free, else made unlike others' by `suffix`."""
    asked = claims.get("preferred_username")
    plain = asked if isinstance(asked, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,79}", asked) else "person"
    return (
        f"{plain}-{suffix}" if plain == "person" or plain.casefold() in {name.casefold() for name in taken} else plain
    )
