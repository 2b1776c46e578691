"""What the contracts' files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_rig import SeaweedFS


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A real S3. Each test has a place of its own in it."""
    server = SeaweedFS(tmp_path_factory.mktemp("weed"))
    server.start()
    yield server
    server.stop()
