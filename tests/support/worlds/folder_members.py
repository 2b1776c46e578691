"""Lists of members of folders, to be arranged by Python and by the upload page alike."""

from __future__ import annotations

from registry.core.folder_rules import Member, MemberKind

FILE, FOLDER, LINK, OTHER = MemberKind.FILE, MemberKind.FOLDER, MemberKind.LINK, MemberKind.OTHER


def listed(*names: str | tuple[str, MemberKind]) -> list[Member]:
    found = [(one, FOLDER if one.endswith("/") else FILE) if isinstance(one, str) else one for one in names]
    return [Member(name, kind, 1) for name, kind in found]


#: Paths that are left out → as what they are named.
ADDED = {
    "artifact/.DS_Store": "artifact/.DS_Store", "artifact/._model.onnx": "artifact/._model.onnx", "Thumbs.db": "Thumbs.db",
    "artifact/THUMBS.DB": "artifact/THUMBS.DB", "artifact/Desktop.ini": "artifact/Desktop.ini",
    "__MACOSX/artifact/._model.onnx": "__MACOSX/", "artifact/__pycache__/model.cpython-311.pyc": "artifact/__pycache__/",
    "artifact/model.pyc": "artifact/model.pyc", "artifact/.gitkeep": "artifact/.gitkeep", ".gitattributes": ".gitattributes",
    "artifact/.git/objects/ab/cd": "artifact/.git/", ".git/config": ".git/",
    "artifact/.ipynb_checkpoints/a.json": "artifact/.ipynb_checkpoints/",
    "tokenizer/.cache/huggingface/download/a.lock": "tokenizer/.cache/", "artifact/.huggingface/x": "artifact/.huggingface/",
    "artifact/model.py~": "artifact/model.py~", "artifact/.model.py.swp": "artifact/.model.py.swp",
    "artifact/.#model.py": "artifact/.#model.py",
    "artifact/~$notes.md": "artifact/~$notes.md", "artifact/.nfs000012": "artifact/.nfs000012",
    "artifact/.~lock.a.csv#": "artifact/.~lock.a.csv#",
    "artifact/.idea/a.json": "artifact/.idea/", "tokenizer/$RECYCLE.BIN/x": "tokenizer/$RECYCLE.BIN/",
}  # fmt: skip
#: Names that look like such ones, and are sent.
SENT = [
    "artifact/model.onnx", "artifact/DS_Store.json", "artifact/git/keep.json", "artifact/a.DS_Store.json", "artifact/~a.json",
    "artifact/cache/a.json", "tokenizer/pycache.json", "artifact/a.b~c.json", "artifact/thumbs.db.json", "artifact/.hidden.json",
]  # fmt: skip

MEMBERS: dict[str, list[Member]] = {
    "a folder": listed("release.yaml", "artifact/", "artifact/model.onnx", "tokenizer/vocab.txt", "config.pbtxt", "notes.txt"),
    "in one folder": listed("r1/", "r1/release.yaml", "r1/artifact/model.onnx", "r1/README.md", "r1/.git/config"),
    "with dots": listed("./", "./release.yaml", "./artifact/model.onnx"),
    "in one folder with dots": listed("./r1/release.yaml", "./r1/artifact/model.onnx"),
    "without release.yaml": listed("r1/artifact/model.onnx", "r1/tokenizer/a.json"),
    "a model at the top": listed("r1/model.onnx", "r1/config.json"),
    "artifact alone": listed("artifact/model.onnx"),
    "added": listed("release.yaml", *ADDED),
    "not added": listed("release.yaml", *SENT),
    "misplaced": listed("release.yaml", "artifact/model.onnx", "tokeniser/a.txt", "weights/", ".hidden/a.txt", "b/c/d.json"),
    "links": listed("release.yaml", ("artifact/a.json", LINK), ("notes", LINK), ("tokenizer", LINK), ("artifact/.git", LINK)),
    "devices": listed("release.yaml", ("artifact/pipe", OTHER), ("config.pbtxt", OTHER), ("socket", OTHER)),
    "wrong kinds": listed("release.yaml/", "artifact/model.onnx", ("tokenizer", FILE), "config.pbtxt/"),
    "files below a file": listed(
        "release.yaml", "config.pbtxt/a.md", "config.pbtxt/b.md", "artifact/config.pbtxt/", "artifact/config.pbtxt/c"
    ),
    "twice": listed("release.yaml", "release.yaml", "artifact/a.json", "artifact/a.json"),
    "nothing": [],
    "too many files": listed("release.yaml", *(f"artifact/{i}.json" for i in range(10_051))),
    "too many members": listed(*(f"notes{i}.txt" for i in range(21_001))),
}  # fmt: skip
