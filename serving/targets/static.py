"""Releases on servers that their owner runs, at addresses that the environment lists."""

from __future__ import annotations

from accounts.core.access import Actor
from serving.models import Environment
from serving.targets.actions.static_servers import remove_server
from serving.targets.local import Local


class Static(Local):
    """The platform `static`. This installation's agent loads or finds the release at each listed address."""

    def clear(self, environment: Environment, *, actor: Actor, reason: str, is_deleted: bool) -> None:
        super().clear(environment, actor=actor, reason=reason, is_deleted=is_deleted)
        for name in environment.listed_servers.order_by("pk").values_list("pk", flat=True) if is_deleted else ():
            remove_server(actor=actor, environment=environment, name=name, reason=reason)
