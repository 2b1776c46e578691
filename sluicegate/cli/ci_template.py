"""`sluicegate ci-template`: a pipeline that ships a release folder with curl and jq, and nothing of ours to install."""

from __future__ import annotations

import argparse
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluicegate.cli import exits

if TYPE_CHECKING:
    from sluicegate.cli.output import Output

_TEMPLATES: Final = Path(__file__).parent / "templates"
PLATFORMS: Final = ("github", "gitlab")
ABOUT = """Prints a pipeline that drafts, sends, seals, validates and rolls out the release folder of a repository. It signs in by the
job's own identity where Sluicegate has a rule for it, else by SLUICEGATE_TOKEN.
  sluicegate ci-template github --model sentiment > .github/workflows/release.yml
  sluicegate ci-template gitlab --model sentiment > .gitlab-ci.yml"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "ci-template",
        help="Print a pipeline for GitHub or GitLab, of curl and jq",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("platform", choices=PLATFORMS)
    parser.add_argument("--model", required=True, type=_name, help="the model's name")
    parser.add_argument("--environment", default="production", type=_name, help="target environment (production)")
    parser.add_argument(
        "--folder", default="release", type=_path, help="the release folder in the repository (release)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    text = template(
        arguments.platform, model=arguments.model, environment=arguments.environment, folder=arguments.folder
    )
    output.result({"platform": arguments.platform, "pipeline": text}, [text.rstrip("\n")])
    return exits.OK


def template(platform: str, *, model: str, environment: str, folder: str) -> str:
    """The pipeline's YAML. The script in it is `templates/pipeline.sh` as it stands."""
    text = (_TEMPLATES / f"{platform}.yml").read_text(encoding="utf-8")
    [block] = [line for line in text.splitlines() if line.endswith("|")]
    script = textwrap.indent(script_text(), " " * (len(block) - len(block.lstrip()) + 2))
    for name, value in (("MODEL", model), ("ENVIRONMENT", environment), ("FOLDER", folder)):
        text = text.replace(f"@{name}@", value)
    return text.replace("@SCRIPT@\n", script)


def script_text() -> str:
    """The script that both pipelines run."""
    return (_TEMPLATES / "pipeline.sh").read_text(encoding="utf-8")


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name; use lower-case letters, digits, - and _")
    return text


def _path(text: str) -> str:
    if not re.fullmatch(r"[\w./-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no plain path; use letters, digits, . _ - and /")
    return text
