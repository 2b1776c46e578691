"""Everything that Sluicegate needs, on one machine: stores, web, worker, agent, engine, control plane and gateway.

`up(Options(...))` runs it in the foreground; `running(...)` runs it for the length of a `with` block, in a process of its own.
"""

from sluicegate.stack.lock import AlreadyRunning
from sluicegate.stack.machine import Options
from sluicegate.stack.processes import StartFailed
from sluicegate.stack.run import up
from sluicegate.stack.session import Stack, running

__all__ = ["AlreadyRunning", "Options", "Stack", "StartFailed", "running", "up"]
