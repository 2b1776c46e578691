"""Pictures of every page, for people to look at: python -m tests.pages.pictures FOLDER [--only PART]

Each page at 1280 and 390 px, light and dark, in an empty and in a full world, and `index.html` with all of them beside each other.
`--docs` writes the few that README and docs show into docs/images instead.
"""

from __future__ import annotations

import argparse
import html
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Where the tests below find out that they are to take pictures, and of what.
FOLDER, ONLY, DOCS = "SLUICEGATE_PICTURES", "SLUICEGATE_PICTURES_OF", "SLUICEGATE_PICTURES_FOR_DOCS"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pages.pictures", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".build" / "pictures")
    parser.add_argument("--only", default="", help="pages whose address has this part")
    parser.add_argument("--docs", action="store_true", help="those of README and docs, into docs/images")
    asked = parser.parse_args(arguments)
    folder = ROOT / "docs" / "images" if asked.docs else asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, FOLDER: str(folder.resolve()), ONLY: asked.only, DOCS: "1" if asked.docs else ""}
    # A test database, a web server and a browser are what the tests have; so pictures are taken by one of them.
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:randomly", "tests/pages/test_pictures.py"]
    done = subprocess.run(command, cwd=ROOT, env=env, check=False)
    if done.returncode == 0 and not asked.docs:
        sys.stdout.write(f"{contact_sheet(folder)}\n")
    return done.returncode


def contact_sheet(folder: Path) -> Path:
    """One page with all pictures of the folder, a row for each address."""
    rows: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.png")):
        rows.setdefault(path.name.partition("@")[0], []).append(path)
    parts = []
    for name, paths in rows.items():
        pictures = "".join(
            f'<a href="{html.escape(path.name)}"><img src="{html.escape(path.name)}" height="360" alt="{html.escape(path.stem)}"></a>'
            for path in paths
        )
        parts.append(f"<h2>{html.escape(name)}</h2><p>{pictures}</p>")
    sheet = folder / "index.html"
    sheet.write_text(f'<!doctype html><meta charset="utf-8"><title>Pictures</title>{"".join(parts)}')
    return sheet


if __name__ == "__main__":
    raise SystemExit(main())
