"""The command of one server, as its kind states it, and the environment in which it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from registry.core.kinds.kind import ServerKind, ServerPlace, Start
from serving.targets.agent.runtime_image import environment, files_of


def command_of(
    kind: ServerKind,
    venv: Path,
    *,
    folder: Path,
    address: str,
    ports: Mapping[str, int],
    secret: str,
    shm_prefix: str,
    model: str,
) -> tuple[Start, dict[str, str]]:
    """(command, environment variables) of a server in `folder`, which gets the links that the server needs.

    Raises RuntimeMissing.
    """
    found = environment(venv)
    files = {name: path.resolve() for name, path in files_of(kind, found).items()}
    loads = folder / "repository" / model / kind.loads
    start = kind.start(
        ServerPlace(venv.absolute(), found.site, files, loads, folder, address, ports, secret, shm_prefix, model)
    )
    for path, target in start.links.items():
        link = folder / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    libraries = [
        *(Path(one).resolve() for one in start.libraries),
        *([found.python_library] if found.python_library else []),
    ]
    # Nothing of the agent's own environment goes to a server: a release's code must not find secrets there.
    return start, {
        "PATH": f"{venv.absolute() / 'bin'}:{os.defpath}",
        "USER": "release",  # there is no /etc/passwd to look it up in
        "LOGNAME": "release",
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "LANG": "C.UTF-8",
        **start.env,
    }
