"""Which moves of lifecycles a test really took: recorded where an app's code updates a row's state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import models
from django.db.models.query import QuerySet

from ledger.models import Job
from notifications.models import Delivery
from registry.models import Blob, Release, Upload
from rollouts.models import Rollout
from serving.models import Replica, Sleep
from tests.support.house.architecture import ROOMS, ROOT
from validators.models import GateRun

#: The one writer of states; whoever calls it makes the move.
_TRANSITIONS = f"{ROOT}/ledger/actions/transitions.py"
#: As `tests.support.house.architecture.LIFECYCLES` names them.
NAMES: dict[type[models.Model], str] = {
    Rollout: "rollout",
    GateRun: "gate run",
    Replica: "deployment",
    Sleep: "sleep",
    Release: "release",
    Upload: "upload",
    Blob: "blob",
    Job: "job",
    Delivery: "delivery",
}


@contextmanager
def recorded() -> Iterator[set[str]]:
    """`rollout: baking → promoted` of every row whose state an app's code updates meanwhile, in whatever thread.

    What a test writes itself is no move. Each such UPDATE costs one read more.
    """
    seen: set[str] = set()
    update = QuerySet.update

    def recording(rows: Any, **columns: Any) -> int:
        name = NAMES.get(rows.model) if "state" in columns else None
        if name is None or not _is_called_by_an_app():
            return update(rows, **columns)
        before = set(rows.order_by().values_list("state", flat=True))
        done = update(rows, **columns)
        if done:
            seen.update(f"{name}: {was} → {columns['state']}" for was in before)
        return done

    QuerySet.update = recording  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        QuerySet.update = update  # type: ignore[method-assign]


def _is_called_by_an_app() -> bool:
    """Whether the nearest line of ours that led here is the product's."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(f"{ROOT}/") and "/site-packages/" not in file and file != _TRANSITIONS:
            return file[len(str(ROOT)) + 1 :].split("/")[0] in ROOMS
        frame = frame.f_back  # type: ignore[assignment]
    return False
