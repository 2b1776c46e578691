"""Server and credentials of a command.

The server: `--server`, else SLUICEGATE_URL, else the local stack's, else http://127.0.0.1:8700.
The token: SLUICEGATE_TOKEN, else what `sluicegate login` saved for that server, else the local stack's
administrator token when it is the local stack that is asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from ledger.adapters.files import write_whole
from sluicegate.cli.errors import refuse
from sluicegate.client import Client

#: Where `sluicegate up` puts the pages and the API when nothing else has the port.
DEFAULT_URL = "http://127.0.0.1:8700"
_CA_FILE: Final[ContextVar[str]] = ContextVar("ca_file", default="")


def state_dir() -> Path:
    """The one-machine stack's folder: SLUICEGATE_STATE_DIR, else `.state` of the checkout."""
    return Path(os.environ.get("SLUICEGATE_STATE_DIR") or Path(__file__).resolve().parents[2] / ".state")


def token_file() -> Path:
    """Where `login` keeps its tokens by server, mode 0600."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sluicegate" / "token"


def server_url(option: str | None) -> str:
    return (option or os.environ.get("SLUICEGATE_URL") or _stack_url()).rstrip("/")


def find_token(url: str) -> str:
    """A token for this server, or "" when there is none anywhere."""
    if os.environ.get("SLUICEGATE_TOKEN"):
        return os.environ["SLUICEGATE_TOKEN"].strip()
    if saved := saved_tokens().get(url):
        return saved
    # the stack's own token belongs to the stack's own server only
    return _local("secrets/admin-token") if url == _stack_url() else ""


def saved_tokens() -> dict[str, str]:
    return {str(url): str(token) for url, token in _saved(token_file()).items()}


def save_token(url: str, token: str, *, audience: str | None = None, rule: int | None = None) -> Path:
    """Returns the file. `audience`: the token came for an identity token of the environment, and can be renewed so."""
    path = token_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, json.dumps({**saved_tokens(), url: token}, indent=1) + "\n", mode=0o600)
    identities = {known: how for known, how in _saved(_identity_file()).items() if known != url}
    if audience is not None:
        identities[url] = {"audience": audience, "rule": rule}
    if identities or _identity_file().exists():
        write_whole(_identity_file(), json.dumps(identities, indent=1) + "\n", mode=0o600)
    return path


def _identity_file() -> Path:
    return token_file().with_name("identity")


def _saved(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def connect(option: str | None) -> Client:
    """A signed-in client. Raises CommandError when no token is known."""
    url = server_url(option)
    token = find_token(url)
    if not token:
        raise refuse(
            f"You are not signed in to {url}.",
            "Run `sluicegate login`, or set SLUICEGATE_TOKEN; for a stack of another state folder on this machine, SLUICEGATE_STATE_DIR.",
        )
    return Client(url, token, renew=_renewal(url), ca_file=_CA_FILE.get())


def as_nobody(url: str) -> Client:
    """A client that has no token yet."""
    return Client(url, ca_file=_CA_FILE.get())


def use_ca_file(path: str) -> None:
    """From now on clients trust these certificates, too: `--ca-file`."""
    _CA_FILE.set(path)


def _renewal(url: str) -> Callable[[], str] | None:
    """What gets another token for this server, by another identity token of the CI job; None if the token came otherwise."""
    how = _saved(_identity_file()).get(url)
    if os.environ.get("SLUICEGATE_TOKEN") or not isinstance(how, dict):
        return None

    def renew() -> str:
        from sluicegate.cli.id_token import ENVIRONMENT, exchange, read_id_tokens  # few commands ever need it

        with as_nobody(url) as client:
            given = exchange(client, read_id_tokens(ENVIRONMENT, audience=how["audience"]), how["rule"])
        save_token(url, given["token"], **how)
        return str(given["token"])

    return renew


def _stack_url() -> str:
    """The local stack's address, from the ports that it remembers."""
    try:
        return f"http://127.0.0.1:{int(json.loads(_local('ports.json'))['web'])}"
    except (ValueError, KeyError, TypeError):
        return DEFAULT_URL


def _local(name: str) -> str:
    try:
        return (state_dir() / name).read_text().strip()
    except OSError:
        return ""
