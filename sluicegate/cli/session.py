"""Which server is asked, and as whom.

The server: `--server`, else SLUICEGATE_URL, else the local stack's, else http://127.0.0.1:8700.
The token: SLUICEGATE_TOKEN, else what `sluicegate login` saved for that server, else the local stack's
administrator token when it is the local stack that is asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ledger.adapters.files import write_whole
from sluicegate.cli.errors import refuse
from sluicegate.client import Client

#: Where `sluicegate up` puts the pages and the API when nothing else has the port.
DEFAULT_URL = "http://127.0.0.1:8700"


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
    try:
        found = json.loads(token_file().read_text())
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def save_token(url: str, token: str) -> Path:
    path = token_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = {**saved_tokens(), url: token}
    write_whole(path, json.dumps(tokens, indent=1) + "\n", mode=0o600)
    return path


def connect(option: str | None) -> Client:
    """A signed-in client. Raises CommandError when no token is known."""
    url = server_url(option)
    token = find_token(url)
    if not token:
        raise refuse(
            f"You are not signed in to {url}.",
            "Run `sluicegate login`, or set SLUICEGATE_TOKEN; for a stack of another state folder on this machine, SLUICEGATE_STATE_DIR.",
        )
    return Client(url, token)


def as_nobody(url: str) -> Client:
    """A client that has no token yet."""
    return Client(url)


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
