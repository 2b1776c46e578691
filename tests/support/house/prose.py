"""Counter of avoidable constructions in the text that people read, by room (docs/style.md).

`python -m tests.support.house.prose` writes the rates of `tests/support/house/prose.json` anew. It refuses to raise one.
Comments, docstrings, Markdown and the text of templates count. Text in code marks does not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RATES = Path(__file__).with_suffix(".json")
#: Every rate is stored as the next multiple, so that a deleted sentence fails no test.
STEP = 5
CONSTRUCTIONS = {
    "nobody, somebody, whoever": r"\b(nobody|somebody|anybody|whoever|whatever|whom|whose)\b",
    "things that say or tell": r"\b(says?|said|tells?|told)\b",
    "'one' for a noun": r"\b(the|that|this|each|another|an? \w+|every) ones?\b|\bones? (that|of|which|who)\b|^\W*One that\b",
    "'where' for if or when": r"\b[Ww]here (no|none|there|it|the|a|an|one|nothing|only|they|that|some)\b",
    "a clause for a noun": r"\b[Ww]hat (it|is|was|are|were|they|has|had|may|can|must|he|the|a|users?|people|no)\b",
    "so many, as often": r"\b(so|as) (many|often|long|few) (as|that)?\b",
}
#: A docstring, another text in triple quotes, or a comment.
PYTHON = re.compile(r'^\s*r?"""(.*?)"""|""".*?"""|(?:^|\s)#:?\s([^\n]*)', re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
MARKUP = re.compile(r"\{[%{#].*?[%}#]\}|<[^>]*>", re.DOTALL)
#: The guide quotes the sentences that it asks to avoid.
SKIPPED = ("vendor/", "migrations/", "docs/style.md")


def text_of(name: str, source: str) -> str:
    """Text of a file that a person reads."""
    if name.endswith(".html"):
        return MARKUP.sub(" ", source)
    if name.endswith(".md"):
        return CODE.sub("", source)
    return CODE.sub("", "\n".join(docstring or comment for docstring, comment in PYTHON.findall(source)))


def found_in(text: str) -> list[str]:
    """Avoidable constructions of a text."""
    return [match[0] for pattern in CONSTRUCTIONS.values() for match in re.finditer(pattern, text, re.MULTILINE)]


def room(name: str) -> str:
    return name.partition("/")[0] if "/" in name else "(top)"


def rates() -> dict[str, float]:
    """Avoidable constructions per 10,000 words, by room."""
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md", "*.html"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if not path.exists() or any(part in name for part in SKIPPED):
            continue
        text = text_of(name, path.read_text(encoding="utf-8"))
        words[room(name)] += len(text.split())
        hits[room(name)] += len(found_in(text))
    return {name: 10_000 * hits[name] / words[name] for name in sorted(words) if words[name]}


def stored() -> dict[str, int]:
    limits: dict[str, int] = json.loads(RATES.read_text()) if RATES.exists() else {}
    return limits


def main() -> int:
    old = stored()
    new = {name: -int(-rate // STEP) * STEP for name, rate in rates().items()}
    risen = [f"{name}: {new[name]} > {old[name]}" for name in new if name in old and new[name] > old[name]]
    if risen:
        sys.stderr.write("Rates never rise. Rewrite by docs/style.md: " + "; ".join(risen) + "\n")
        return 1
    RATES.write_text(json.dumps(new, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
