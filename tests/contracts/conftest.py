"""What the contracts' files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.rigs.s3_rig import SeaweedFS

if TYPE_CHECKING:  # Django is not set up yet
    from registry.storage import BlobStore


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A real S3. Each test has a place of its own in it."""
    server = SeaweedFS(tmp_path_factory.mktemp("weed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.real("s3"))])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """Each store that there is. A new adapter joins by one more parameter."""
    from registry.storage import FolderStore
    from tests.contracts.blob_store_parts import MAX_BYTES, s3_store

    if request.param == "folder":
        return FolderStore(tmp_path / "blobs", max_bytes=MAX_BYTES)
    return s3_store(request.getfixturevalue("seaweed"), tmp_path / "copies")
