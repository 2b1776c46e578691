"""release.yaml: what a release says of itself, read into one normal form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from accounts.core.slugs import slug_near
from ledger.core.errors import Invalid
from registry.core import envelope, envelope_lint, serving
from registry.core.file_rules import BACKENDS
from registry.core.kinds import DEFAULT, KINDS
from registry.core.kinds import lint as kind_lint
from registry.core.schema import INVALID, Instant, Object, Problem, Record, Text, digest, listed, may, need

_IMAGE = Text(
    500,
    pattern=r"[a-z0-9][a-z0-9._/:\-]*@sha256:[0-9a-f]{64}",
    like="triton-local@sha256:<64 hex digits>",
    says="an image named by its digest",
    rule="a name in small letters, digits and . _ - / :, then @sha256: and 64 hex digits in lower case",
)


class _Image:
    """name@sha256:…; a tag is answered with the reason why not."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if isinstance(value, str) and "@" not in value:
            tag = value.rsplit(":", 1)[1] if ":" in value.rsplit("/", 1)[-1] else "latest"
            name = value.removesuffix(f":{tag}")
            problems.append(
                Problem(
                    at,
                    f"{value!r} names a tag ({tag}), and a tag may mean other bytes tomorrow.",
                    f"Write the digest: {name or 'name'}@sha256: and 64 hex digits.",
                )
            )
            return value
        return _IMAGE.read(value, at, problems)


_BACKEND = Text(one_of=BACKENDS, says="a known backend")


class _Backend:
    """One of BACKENDS. The old name of the graphs' runner is answered with its new one."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if value == "onnxruntime":
            said = "'onnxruntime' is Triton's own backend, which no runtime here has."
            problems.append(Problem(at, said, "Write sluicegate-onnx: it runs graphs with their tokenizer."))
            return INVALID
        return _BACKEND.read(value, at, problems)


_URL = Text(
    500,
    pattern=r"https?://\S+",
    like="https://ci.example.com/runs/1",
    says="an http or https address",
    rule="http:// or https:// and no space",
)
RUNTIME: Final = Record(
    {
        "image": need(_Image()),
        "server": may(Text(one_of=tuple(KINDS), says="a known server"), DEFAULT),
        "backend": need(_Backend()),
    }
)
PROVENANCE: Final = Record(
    {
        "git_commit": may(
            Text(
                64,
                pattern=r"[0-9a-f]{7,64}",
                like='"4f2a9c1"',
                says="a commit",
                rule="7 to 64 hex digits in lower case",
            )
        ),
        "git_repository": may(Text(500)),
        "git_branch": may(Text(200)),
        "ci_run_url": may(_URL),
        "dataset": may(Text(500)),
        "dataset_digest": may(digest("a digest")),
        "trained_at": may(Instant()),
        "trained_by": may(Text(200)),
        "framework": may(Text(200)),
        "license": may(Text(200)),
        "notes": may(Text(4000)),
        "labels": may(Object(Text(1000))),
    }
)
LONGEST_SLUG: Final = 60
SLUG: Final = Text(
    LONGEST_SLUG,
    pattern=r"[a-z0-9][a-z0-9_\-]*",
    like="sentiment",
    says="a model's name",
    rule=f"small letters, digits, - and _, at most {LONGEST_SLUG} and beginning with a letter or digit",
    near=partial(slug_near, most=LONGEST_SLUG, besides="-_"),
)
DOCUMENT: Final = Record(
    {
        "model": need(SLUG),
        "runtime": need(RUNTIME),
        "serving": need(serving.SERVING),
        "envelope": may(envelope.ENVELOPE, {}),
        "provenance": may(PROVENANCE, {}),
    },
    elsewhere={
        "version": "Remove it: releases are numbered when they are sealed.",
        "inputs": "Write serving.inputs.",
        "outputs": "Write serving.outputs.",
        "image": "Write runtime.image.",
        "backend": "Write runtime.backend.",
        "max_batch_size": "Write serving.max_batch_size.",
    },
)


@dataclass(frozen=True)
class Spec:
    """A checked release.yaml in normal form: defaults filled in, lists without an order sorted.

    The parts are plain JSON, just as the manifest holds them. Treat them as frozen.
    """

    model: str
    runtime: dict[str, Any]
    serving: dict[str, Any]
    envelope: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def backend(self) -> str:
        return str(self.runtime["backend"])

    def as_json(self) -> dict[str, Any]:
        """The release.yaml that says this and reads as this again."""
        return {
            "model": self.model,
            "runtime": self.runtime,
            "serving": self.serving,
            "envelope": self.envelope,
            "provenance": self.provenance,
        }


def parse_spec(document: Mapping[str, Any]) -> Spec:
    """The checked release.yaml.

    Raises Invalid("invalid_spec") whose facts["errors"] list every mistake, as {field, message, fix}: unknown fields,
    wrong types and values, and contradictions between serving, envelope and runtime.
    """
    spec, problems = read_spec(document)
    refuse("invalid_spec", "release.yaml", problems)
    assert spec is not None  # there is one when there is no problem
    return spec


def read_spec(document: Mapping[str, Any]) -> tuple[Spec | None, list[Problem]]:
    """(the spec, no problems), or (None, every problem)."""
    problems: list[Problem] = []
    read = DOCUMENT.read(kind_lint.completed(document), "", problems)
    if isinstance(read, dict):
        problems += _lint(read)
    if problems:
        return None, problems
    return Spec(
        read["model"], read["runtime"], serving.normal(read["serving"]), read["envelope"], read["provenance"]
    ), []


def _lint(read: Mapping[str, Any]) -> list[Problem]:
    config, runtime = read.get("serving"), read.get("runtime", {})
    if not isinstance(config, dict):
        return []
    backend = runtime.get("backend", "")
    problems = kind_lint.lint(runtime, config) + serving.lint(config, backend=backend)
    return problems + envelope_lint.lint(read.get("envelope", {}), config, backend)


def refuse(code: str, what: str, problems: Sequence[Problem]) -> None:
    """Raises Invalid with all problems, the first told in the message; does nothing when there are none."""
    if not problems:
        return
    first = problems[0]
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    where = f"{first.field}: " if first.field else ""
    raise Invalid(
        code, f"{what} has {count}. {where}{first.message} {first.fix}", errors=[p.as_json() for p in listed(problems)]
    )
