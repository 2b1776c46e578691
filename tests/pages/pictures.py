"""Pictures of every page, for people to look at: python -m tests.pages.pictures FOLDER [--world W] [--only PART] [--width N]

Each page at 1280 and 390 px, light and dark, in five worlds (empty, one of each, many, a company at work, and what goes wrong there),
and `index.html` with all of them beside each other. `--docs` writes the few that README and docs show into docs/images instead.
"""

from __future__ import annotations

import argparse
import html
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Where the tests below find out that they are to take pictures, and of what.
FOLDER, ONLY, DOCS = "SLUICEGATE_PICTURES", "SLUICEGATE_PICTURES_OF", "SLUICEGATE_PICTURES_FOR_DOCS"
WORLD, WIDTH, SCHEME = "SLUICEGATE_PICTURES_IN", "SLUICEGATE_PICTURES_WIDE", "SLUICEGATE_PICTURES_SCHEME"
WORLDS = ("empty", "one", "many", "full", "error")
_HEAD = b"\x89PNG\r\n\x1a\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pages.pictures", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".build" / "pictures")
    parser.add_argument("--only", default="", help="pages whose address or name has this part; several: a,b")
    parser.add_argument("--world", choices=WORLDS, default="", help="in this world alone")
    parser.add_argument("--width", choices=("1280", "390"), default="", help="of this width alone, in px")
    parser.add_argument("--scheme", choices=("light", "dark"), default="", help="in these colours alone")
    parser.add_argument("--docs", action="store_true", help="those of README and docs, into docs/images")
    asked = parser.parse_args(arguments)
    folder = ROOT / "docs" / "images" if asked.docs else asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ, FOLDER: str(folder.resolve()), ONLY: asked.only, DOCS: "1" if asked.docs else "", WORLD: asked.world,
        WIDTH: asked.width, SCHEME: asked.scheme,
    }  # fmt: skip
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


def packed(png: bytes) -> bytes:
    """The same picture in fewer bytes: its data compressed as well as zlib can, and what only describes it left out.

    Raises ValueError for bytes that are no PNG.
    """
    if not png.startswith(_HEAD):
        raise ValueError("these bytes are no PNG")
    kept, data, at = [], b"", len(_HEAD)
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size
        if kind == b"IDAT":
            data += body
        elif kind in {b"IHDR", b"PLTE", b"tRNS"}:
            kept.append((kind, body))
    smallest = min((zlib.compress(zlib.decompress(data), 9), data), key=len)
    chunks = [*kept, (b"IDAT", smallest), (b"IEND", b"")]
    return _HEAD + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


if __name__ == "__main__":
    raise SystemExit(main())
