"""Identity token of a CI job, and its exchange for a Sluicegate token: `sluicegate login --oidc-token`.

GitHub Actions gives identity tokens on request (ACTIONS_ID_TOKEN_REQUEST_URL, which a job with `id-token: write` has).
GitLab and others put one into SLUICEGATE_ID_TOKEN, and more for a long job into SLUICEGATE_ID_TOKEN_2 and so on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from sluicegate.cli.errors import refuse
from sluicegate.client import Client
from sluicegate.client.errors import Problem, Unreachable
from sluicegate.client.network import Transport

#: What `--oidc-token` may be in place of a file's name: the environment, or standard input.
ENVIRONMENT, STANDARD_INPUT = "env", "-"
_VARIABLE, AUDIENCE = "SLUICEGATE_ID_TOKEN", "SLUICEGATE_AUDIENCE"
_GITHUB_URL, _GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
_TIMEOUT_S = 20.0
_MOST_BYTES = 64 * 1024
_MOST_TOKENS = 9


def read_id_tokens(source: str, *, audience: str) -> Iterator[str]:
    """The identity tokens to exchange, the first that works: of the file of this name, of standard input (-), or of the
    environment (env), which on GitLab may have several. Raises CommandError."""
    if source == STANDARD_INPUT:
        yield _not_empty(sys.stdin.read(_MOST_BYTES))
    elif source != ENVIRONMENT:
        try:
            found = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise refuse(
                f"The identity token cannot be read from {source}: {error}.", "Name its file, - or env."
            ) from None
        yield _not_empty(found)
    elif os.environ.get(_VARIABLE):
        names = [_VARIABLE, *(f"{_VARIABLE}_{number}" for number in range(2, _MOST_TOKENS + 1))]
        yield from (_not_empty(os.environ[name]) for name in names if os.environ.get(name))
    elif os.environ.get(_GITHUB_URL):
        yield _ask_github(audience)
    else:
        raise refuse(
            f"There is neither {_VARIABLE} nor {_GITHUB_URL} in the environment.",
            "On GitHub, give the job `permissions: id-token: write`; on GitLab, an `id_tokens:` entry of that name.",
        )


def _not_empty(text: str) -> str:
    if not text.strip():
        raise refuse("The identity token is empty.", "See docs/identity.md for how CI gives one.")
    return text.strip()


def exchange(client: Client, id_tokens: Iterable[str], rule: int | None = None) -> dict[str, Any]:
    """{token, expires_at, rule, username, verbs, models} for the first of these that was not exchanged before.

    Needs no token itself. Raises Problem.
    """
    used: Problem | None = None
    for id_token in id_tokens:
        body = {"id_token": id_token} if rule is None else {"id_token": id_token, "rule": rule}
        try:
            given: dict[str, Any] = client.post("/tokens:exchange", body)
        except Problem as problem:
            if problem.code != "id_token_used":
                raise
            used = problem
        else:
            return given
    assert used is not None  # there is one token at least
    raise used


def _ask_github(audience: str) -> str:
    """Source: GitHub's documentation of OpenID Connect in Actions: GET with `&audience=`, answered by {"value": token}."""
    url = httpx.URL(os.environ[_GITHUB_URL])
    headers = {"Authorization": f"bearer {os.environ.get(_GITHUB_TOKEN, '')}", "Accept": "application/json"}
    try:
        with httpx.Client(transport=Transport(), trust_env=False, timeout=_TIMEOUT_S) as client:
            answer = client.get(url.copy_merge_params({"audience": audience}), headers=headers)
        value = answer.json().get("value") if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        raise Unreachable(url.host, f"GitHub gives no identity token: {error}") from None
    if not isinstance(value, str):
        raise refuse(
            f"GitHub gives no identity token (status {answer.status_code}).",
            "Give the job `permissions: id-token: write`.",
        )
    return value
