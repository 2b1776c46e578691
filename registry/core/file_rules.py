"""The files of a release: which paths are safe, which formats are allowed by name, and what each file is.

Formats are allowed, never denied, by name: a list of bad ones is always one short.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

from registry.core.kinds import BACKEND_FILES
from registry.core.lifecycle import FileRole
from registry.core.schema import Problem

LONGEST_PATH: Final = 300
MOST_FILES: Final = 10_000
#: A Triton configuration may come along; it is compared with `serving`, which stays the truth.
CONFIG_FILES: Final = frozenset({"config.pbtxt", "artifact/config.pbtxt"})
LONGEST_CONFIG_BYTES: Final = 1 << 20

_OWN_FILES: Final = frozenset({*BACKEND_FILES.values(), *CONFIG_FILES, "tokenizer/tokenizer.json"})
BACKENDS: Final = tuple(BACKEND_FILES)

#: Holds numbers or text and nothing that runs. Includes the default files of exporters and tokenizers.
DATA_ENDINGS: Final = frozenset(
    {
        # weights and graphs
        ".onnx", ".data", ".index", ".plan", ".safetensors", ".gguf", ".xml",
        # tokenizers
        ".model", ".vocab", ".merges", ".tiktoken", ".spm", ".bpe", ".codes", ".jinja", ".j2",
        # settings, labels, notes
        ".json", ".jsonl", ".txt", ".csv", ".tsv", ".md", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".pbtxt",
    }
)  # fmt: skip
#: Data without an ending: the requests with which TensorFlow Serving warms a model.
_NAMED_DATA: Final = frozenset({"tf_serving_warmup_requests"})
#: Follows the ending of each piece of a TensorFlow checkpoint, such as .data-00000-of-00001.
_PIECE: Final = re.compile(r"(?<=\.data)-\d{5}-of-\d{5}$", re.IGNORECASE)
#: Notes that have no ending, in lower case.
_NOTES: Final = frozenset({"license", "licence", "notice", "copying", "authors", "readme", "changelog"})
#: Can run code while it is read, and needs a waiver of its own kind.
PICKLE_ENDINGS: Final = frozenset({".pkl", ".pickle", ".joblib", ".pth", ".ckpt", ".bin", ".dill"})
#: Archives in which a server finds code: TorchServe's, Keras's, and those of torch.export.
ARCHIVE_ENDINGS: Final = frozenset({".mar", ".keras", ".pt2"})
#: Runs when it is loaded: a TorchScript archive carries code, and its container is a pickle. A graph
#: of TensorFlow (.pb) reads and writes files by its operations.
CODE_ENDINGS: Final = frozenset({".py", ".pt", ".pb"}) | ARCHIVE_ENDINGS | PICKLE_ENDINGS
#: Endings of other tools → (kind of file, next step).
_ELSEWHERE: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(
        (".npy", ".npz", ".h5", ".hdf5", ".ot", ".msgpack"),
        ("of a format that can run code while it is read", "Convert the weights to safetensors or ONNX."),
    ),
    **dict.fromkeys((".engine", ".trt"), ("an engine plan by its name", "Name it artifact/model.plan.")),
    ".ort": ("a graph in ONNX Runtime's own format", "Push the .onnx file that it was made of."),
    **dict.fromkeys((".meta", ".tflite"), ("a graph of TensorFlow", "Convert it to ONNX with tf2onnx.")),
    **dict.fromkeys(
        (".mlmodel", ".mlpackage", ".mlmodelc"), ("a graph of Core ML", "Leave it out, and push the ONNX graph.")
    ),
    **dict.fromkeys((".pdmodel", ".pdiparams"), ("a graph of Paddle", "Convert it to ONNX with paddle2onnx.")),
    **dict.fromkeys(
        (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".zst", ".nemo"),
        ("an archive", "Unpack it into the folder."),
    ),
    **dict.fromkeys(
        (".sh", ".so", ".dll", ".dylib", ".exe", ".bat", ".js", ".jar", ".ipynb", ".whl"),
        ("a program", "Leave it out; programs and libraries belong into the runtime image."),
    ),
    **dict.fromkeys(
        (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf", ".html", ".mp4", ".wav"),
        ("of no format that a server loads", "Leave it out."),
    ),
}


def path_problems(path: str, *, beside: Iterable[str] | None = None) -> list[Problem]:
    """Why this path cannot be in a release. Paths are relative, with forward slashes, under artifact/ or tokenizer/.

    `beside`: the release's other paths, if they are known; without them the format is not judged.
    """
    if problems := name_problems(path):
        return problems
    segments = path.split("/")
    if path not in CONFIG_FILES and (len(segments) < 2 or segments[0] not in {"artifact", "tokenizer"}):
        said = f"{_shown(path)} is neither under artifact/ nor under tokenizer/."
        return [Problem("path", said, "Move the file into one of the two folders.")]
    return [] if beside is None or _lies_at(path, graph_folders(beside)) else format_problems(path)


def graph_folders(paths: Iterable[str]) -> frozenset[str]:
    """The folders of the ONNX graphs, each with its slash. A file in one may be external data; the seal reads the graph."""
    return frozenset(f"{path.rpartition('/')[0]}/" for path in paths if ending_of(path) == ".onnx")


def _lies_at(path: str, folders: frozenset[str]) -> bool:
    return any(path.startswith(folder) for folder in folders)


def name_problems(path: str) -> list[Problem]:
    """Why a file of this name would be unsafe or not one thing everywhere, wherever in a folder it lies."""

    def problem(message: str, fix: str) -> list[Problem]:
        return [Problem("path", f"{_shown(path)} {message}.", fix)]

    segments = path.split("/")
    if not path or len(path) > LONGEST_PATH or any(len(s.encode("utf-8", "replace")) > 255 for s in segments):
        return problem(
            "is empty or too long", f"Use 1 to {LONGEST_PATH} characters, at most 255 bytes between slashes."
        )
    if any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for char in path):
        return problem("holds control or invisible characters", "Use printable characters.")
    if "\ufffd" in path:  # what a name that is not UTF-8 is read as, so that two such names may look like one
        return problem("is not UTF-8", "Rename the file.")
    if "\\" in path:
        return problem("has a backslash", "Separate folders with forward slashes.")
    if path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        return problem("is absolute", "Write it relative to the release folder, such as artifact/model.onnx.")
    if ".." in segments or "." in segments:
        return problem("leaves its folder or points at itself", "Remove the '.' and '..' parts.")
    if "" in segments or any(segment != segment.strip() for segment in segments):
        return problem("has an empty part, or one that begins or ends with a space", "Write one slash between names.")
    return []


def format_problems(path: str) -> list[Problem]:
    """Why a file of this name is not of an allowed format, if no graph names it as its external data."""
    ending = ending_of(path)
    if ending in DATA_ENDINGS | CODE_ENDINGS or _is_note(path) or path.rpartition("/")[2] in _NAMED_DATA:
        return []
    if ending in _ELSEWHERE:
        what, fix = _ELSEWHERE[ending]
        return [Problem("path", f"{_shown(path)} is {what} ({ending}), which is not taken.", fix)]
    said = f"{_shown(path)} is not of an allowed format ({ending or 'no ending'})."
    allowed = ", ".join(sorted(DATA_ENDINGS | CODE_ENDINGS))
    fix = f"Leave it out, or give it the ending of its format. Taken are {allowed}, and a graph's external data."
    return [Problem("path", said, fix)]


def _is_note(path: str) -> bool:
    return path.rpartition("/")[2].lower() in _NOTES


def config_size_problems(path: str, size_bytes: int) -> list[Problem]:
    """Why a config.pbtxt of this size is refused unread; empty for other files."""
    if path not in CONFIG_FILES or size_bytes <= LONGEST_CONFIG_BYTES:
        return []
    said = f"{path} is longer than {LONGEST_CONFIG_BYTES} bytes."
    return [Problem("path", said, "Remove it: it is generated from release.yaml.")]


def ending_of(path: str) -> str:
    """Returns `.onnx`, in lower case, or "" for a name without an ending. A checkpoint's piece ends with .data."""
    name = _PIECE.sub("", path.rsplit("/", 1)[-1])
    return f".{name.rsplit('.', 1)[1].lower()}" if "." in name.lstrip(".") else ""


def can_be_data(path: str, *, beside: Iterable[str] | None = None) -> bool:
    """Whether a file of this name is data if a graph names it. Code stays code, and a server's own files stay what they are.

    `beside`: the release's other paths, if they are known; no graph names a file outside of its own folder.
    """
    if ending_of(path) in CODE_ENDINGS - PICKLE_ENDINGS or path in _OWN_FILES:
        return False
    return beside is None or _lies_at(path, graph_folders(beside))


def role_of(path: str, *, is_data: bool = False) -> FileRole:
    """What a file is, by its name and folder. Code is code wherever it lies. `is_data`: a graph names it as its external data."""
    if is_data and can_be_data(path):
        return FileRole.ARTIFACT
    if ending_of(path) in CODE_ENDINGS:
        return FileRole.CODE
    if path in CONFIG_FILES:
        return FileRole.CONFIG
    if ending_of(path) == ".md" or _is_note(path):
        return FileRole.DOC
    return FileRole.TOKENIZER if path.startswith("tokenizer/") else FileRole.ARTIFACT


def waivers_needed(paths: Iterable[str]) -> frozenset[str]:
    """The kinds of waiver without which such files may not run: `code`, `pickle`, both or none."""
    endings = {ending_of(path) for path in paths} & CODE_ENDINGS
    kinds = {"pickle" if ending in PICKLE_ENDINGS else "code" for ending in endings}
    return frozenset(kinds)


def code_files(files: Iterable[Mapping[str, Any]]) -> list[str]:
    """Paths of a manifest's files that may run. A file with a pickle's ending that was sealed as data cannot."""
    return [
        file["path"]
        for file in files
        if ending_of(file["path"]) in CODE_ENDINGS
        and not (ending_of(file["path"]) in PICKLE_ENDINGS and file["role"] == FileRole.ARTIFACT)
    ]


def collision_key(path: str) -> str:
    """Two paths with one key would be one file on some file system (letter case, Unicode composition)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def collisions(path: str, others: Iterable[str]) -> list[Problem]:
    """Which of the other paths cannot lie beside this one: the same file elsewhere, or a file where a folder is."""
    key, problems = collision_key(path), []
    for other in others:
        theirs = collision_key(other)
        if theirs == key:
            problems.append(
                Problem(
                    "path",
                    f"{_shown(path)} and {_shown(other)} are one file on some file systems.",
                    "Rename one of them.",
                )
            )
        elif theirs.startswith(f"{key}/") or key.startswith(f"{theirs}/"):
            problems.append(
                Problem(
                    "path",
                    f"{_shown(path)} and {_shown(other)} make one name both a file and a folder.",
                    "Rename one of them.",
                )
            )
    return problems


def set_problems(paths: Iterable[str]) -> list[Problem]:
    """All that is wrong with a whole list of paths, each problem at `files[i].path`. Linear in the number of paths."""
    problems, seen, folders = [], dict[str, str](), dict[str, str]()
    listed = list(paths)
    graphs = graph_folders(listed)
    for i, path in enumerate(listed):
        found = path_problems(path)
        if not _lies_at(path, graphs):
            found = found or format_problems(path)
        if not found:
            key = collision_key(path)
            parents = [key[:n] for n, char in enumerate(key) if char == "/"]
            rivals = [r for r in (seen.get(key), folders.get(key), *(seen.get(p) for p in parents)) if r is not None]
            found = collisions(path, rivals[:1])
            seen.setdefault(key, path)
            for parent in parents:
                folders.setdefault(parent, path)
        problems += [problem.at(f"files[{i}].path") for problem in found]
    return problems


def backend_problems(backend: str, paths: Iterable[str]) -> list[Problem]:
    """The file that the backend loads must be there."""
    wanted, have = BACKEND_FILES[backend], set(paths)
    if wanted in have:
        return []
    fits = [name for name, path in BACKEND_FILES.items() if path in have]
    hint = f", or write runtime.backend {fits[0]}" if fits else ""
    return [
        Problem(
            wanted,
            f"runtime.backend {backend} loads {wanted}, and the release has no such file.",
            f"Add {wanted}{hint}.",
        )
    ]


def _shown(path: str) -> str:
    text = ascii(path)
    return text if len(text) <= 120 else f"{text[:117]}...'"
