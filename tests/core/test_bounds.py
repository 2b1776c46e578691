"""What a sealed release says of its requests is read from its manifest, of which nothing is kept: one may be megabytes."""

from __future__ import annotations

import gc
import json
import weakref

from serving.traffic.core.bounds import bounds_of


class Text(str):
    """A text whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_a_manifest_that_was_read_is_not_kept() -> None:
    manifest = Text(json.dumps({"envelope": {"limits": {"max_concurrency": 7}}}))
    seen = weakref.ref(manifest)
    assert bounds_of(manifest).declared_in_flight == 7
    del manifest
    gc.collect()
    assert seen() is None
