"""Where a CI job's identity token comes from, and its exchange for a token of ours: `sluicegate login --oidc-token`.

GitHub Actions is asked for one (ACTIONS_ID_TOKEN_REQUEST_URL, which a job with `id-token: write` has); GitLab and others put one
into SLUICEGATE_ID_TOKEN.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from ledger.adapters.deadline_http import DeadlineConnection, TooLong
from sluicegate.cli.errors import refuse
from sluicegate.client import Client
from sluicegate.client.errors import Unreachable

#: What `--oidc-token` may be in place of a file's name: the environment, or standard input.
ENVIRONMENT, STANDARD_INPUT = "env", "-"
_VARIABLE, AUDIENCE = "SLUICEGATE_ID_TOKEN", "SLUICEGATE_AUDIENCE"
_GITHUB_URL, _GITHUB_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
_TIMEOUT_S = 20.0
_MOST_BYTES = 64 * 1024


def read_id_token(source: str, *, audience: str) -> str:
    """The identity token: from the file of this name, from standard input (-), or from the environment (env). Raises CommandError."""
    if source == STANDARD_INPUT:
        found = sys.stdin.read(_MOST_BYTES)
    elif source != ENVIRONMENT:
        try:
            found = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise refuse(
                f"The identity token cannot be read from {source}: {error}.", "Name its file, - or env."
            ) from None
    elif os.environ.get(_VARIABLE):
        found = os.environ[_VARIABLE]
    elif os.environ.get(_GITHUB_URL):
        found = _ask_github(audience)
    else:
        raise refuse(
            f"There is neither {_VARIABLE} nor {_GITHUB_URL} in the environment.",
            "On GitHub, give the job `permissions: id-token: write`; on GitLab, an `id_tokens:` entry of that name.",
        )
    if not found.strip():
        raise refuse("The identity token is empty.", "See docs/identity.md for how CI gives one.")
    return found.strip()


def exchange(client: Client, id_token: str, rule: int | None = None) -> dict[str, Any]:
    """{token, expires_at, rule, username, verbs, models}. Needs no token itself."""
    body = {"id_token": id_token} if rule is None else {"id_token": id_token, "rule": rule}
    given: dict[str, Any] = client.post("/tokens:exchange", body)
    return given


def _ask_github(audience: str) -> str:
    """Source: GitHub's documentation of OpenID Connect in Actions: GET with `&audience=`, answered by {"value": token}."""
    url = os.environ[_GITHUB_URL]
    parts = urlsplit(url)
    path = (parts.path or "/") + f"?{parts.query}{'&' if parts.query else ''}audience={quote(audience, safe='')}"
    headers = {"Authorization": f"bearer {os.environ.get(_GITHUB_TOKEN, '')}", "Accept": "application/json"}
    origin = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
    try:
        with DeadlineConnection(origin, time.monotonic() + _TIMEOUT_S, _MOST_BYTES) as line:
            status, answer = line.ask("GET", path, None, headers)
        value = json.loads(answer).get("value") if status == 200 else None
    except (OSError, http.client.HTTPException, TooLong, ValueError, AttributeError) as error:
        raise Unreachable(origin, f"GitHub gives no identity token: {error}") from None
    if not isinstance(value, str):
        raise refuse(
            f"GitHub gives no identity token (status {status}).", "Give the job `permissions: id-token: write`."
        )
    return value
