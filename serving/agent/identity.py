"""Who this agent is: the credential of its node, which it makes itself and keeps in its state folder (0600).

What is about to hold is on disk before the database knows it, under another name, and is tried after the one that held: an agent that was
killed between the two is who it was.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from accounts.core.access import Actor
from ledger.adapters.files import write_whole
from ledger.core.errors import Refused
from serving import actions
from serving.actions.joining import digest_of, join_node, new_credential, record_refused_agent, rotate_credential
from serving.models import Node
from serving.queries.deployments import find_node

log = logging.getLogger(__name__)


class NodeIdentity:
    """
    Args:
        node: the name under which it is heard of.
        file: where the credential is kept; None: it has none, and gets none.
        join_token: the token that it was invited with; empty for none. It is used where nothing else lets the agent in.
    """

    def __init__(self, node: str, *, file: Path | None = None, join_token: str = "") -> None:
        self._node, self._file, self._join_token = node, file, join_token
        self._actor = Actor.system(f"agent:{node}")
        self._credential = ""  # that was let in last
        self._is_kept = True  # that one, on disk under the name that holds
        self._troubles: set[str] = set()  # with the disk; each is said once, and not at every heartbeat

    def introduce(self, **told: Any) -> Node:
        """Registers the node as `register_node` does, joined or with another credential before, where that is due. Raises Refused."""
        try:
            node = self._registered(told)
        except Refused as error:
            record_refused_agent(actor=self._actor, name=self._node, code=error.code, message=error.message)
            raise
        if (
            node.rotation_asked_at is not None and self._credential and self._is_kept
        ):  # else its only copy would be written over
            try:
                self._rotate()
            except OSError as error:  # no room for it is no reason to leave servers alone
                self._warn("keeps its credential", error)
        return node

    def _registered(self, told: dict[str, Any]) -> Node:
        refused: Refused | None = None
        has_token = bool(self._join_token) and self._file is not None
        for credential in self._known() if not has_token or self._has_joined() else ():
            try:
                node = actions.register_node(actor=self._actor, name=self._node, credential=credential, **told)
            except Refused as error:
                refused = error
            else:
                if node.credential:  # else the database is from before it joined, and lets everybody in
                    self._keep(credential)
                return node
        if has_token:
            try:
                return self._join(told)
            except Refused as error:  # why it is no longer let in says more than that its token is used
                raise refused or error from None
            except OSError as error:  # the token was not used yet
                self._warn("does not join", error)
        if refused is not None:
            raise refused
        return actions.register_node(actor=self._actor, name=self._node, **told)

    def _has_joined(self) -> bool:
        """Whether a credential says who the node is, or that it was revoked. Where none does, any would let in an agent whose token is
        refused, as who comes without one."""
        node = find_node(self._node)
        return node is not None and (bool(node.credential) or node.revoked_at is not None)

    def _known(self) -> list[str]:
        """Those that may hold, that which did first."""
        if self._file is None:
            return []
        kept = [self._read(file) for file in (self._file, self._next)]
        return list(dict.fromkeys(one for one in (self._credential, *kept) if one))

    def _read(self, file: Path) -> str:
        try:
            return file.read_text().strip() if file.exists() else ""
        except OSError as error:
            self._warn(f"cannot read {file}", error)
            return ""

    def _join(self, told: dict[str, Any]) -> Node:
        credential = self._prepared()
        join_node(actor=self._actor, name=self._node, token=self._join_token, credential_digest=digest_of(credential))
        self._keep(credential)
        log.info("node %s has joined", self._node)
        return actions.register_node(actor=self._actor, name=self._node, credential=credential, **told)

    def _rotate(self) -> None:
        credential, before = self._prepared(), self._credential
        rotate_credential(actor=self._actor, name=self._node, credential=before, new_digest=digest_of(credential))
        self._keep(credential)
        log.info("node %s has another credential", self._node)

    def _prepared(self) -> str:
        credential = new_credential()
        self._next.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._next, f"{credential}\n", mode=0o600, is_durable=True)
        return credential

    def _keep(self, credential: str) -> None:
        """Where the disk takes nothing it holds in memory, and the disk is tried again at each heartbeat."""
        if credential == self._credential and self._is_kept:
            return
        assert self._file is not None
        self._credential, self._is_kept = credential, False
        try:
            if not self._file.exists() or self._file.read_text().strip() != credential:
                write_whole(self._file, f"{credential}\n", mode=0o600, is_durable=True)
            self._next.unlink(missing_ok=True)
        except OSError as error:
            self._warn("cannot write its credential down", error)
        else:
            self._is_kept = True
            self._troubles.clear()

    def _warn(self, what: str, error: OSError) -> None:
        said = f"{what}: {error}"
        if said not in self._troubles:
            log.warning("node %s %s; it is tried again", self._node, said)
        self._troubles.add(said)

    @property
    def _next(self) -> Path:
        assert self._file is not None
        return self._file.with_name(f"{self._file.name}.next")
