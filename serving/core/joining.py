"""Where an agent keeps what proves that it is its node."""

from __future__ import annotations

from pathlib import Path


def credential_file(state_dir: Path, node: str) -> Path:
    return state_dir / "node-identity" / node
