"""What a release changes, in three lines."""

from __future__ import annotations

from typing import Any

from registry.core.change_summary import summary_of


def manifest(**over: Any) -> dict[str, Any]:
    files = [{"path": "artifact/model.onnx", "role": "artifact", "sha256": "a" * 64, "size_bytes": 2_000_000}]
    runtime = {"image": "local@sha256:1", "server": "triton", "backend": "sluicegate-onnx"}
    return {"files": files, "runtime": runtime, "serving": {"max_batch_size": 16}, "envelope": {}, **over}


def test_a_first_release_has_nothing_to_be_compared_with() -> None:
    files, runtime, envelope = summary_of(None, manifest(envelope={"memory_mib": 1}))
    assert files == "Files: 1, 1.9 MiB; there is nothing before to compare with."
    assert runtime == "Runtime: sluicegate-onnx in local@sha256:1." and envelope == "Envelope: declares memory_mib."


def test_what_is_the_same_is_said_to_be() -> None:
    assert summary_of(manifest(), manifest()) == (
        "Files: the same 1, byte for byte.", "Runtime and configuration: the same.", "Envelope: the same.",
    )  # fmt: skip


def test_files_are_named_with_their_roles_and_numbers_with_both_values() -> None:
    files = [
        {"path": "artifact/model.onnx", "role": "artifact", "sha256": "b" * 64, "size_bytes": 1},
        *({"path": f"tokenizer/{n}", "role": "tokenizer", "sha256": "c" * 64, "size_bytes": 1} for n in range(6)),
    ]
    new = manifest(files=files, serving={"max_batch_size": 32, "inputs": [1]}, envelope={"memory_mib": 5})
    told = summary_of(manifest(), new)
    assert told[0] == (
        "Files: 1 changed (artifact/model.onnx), 6 added (tokenizer/0, tokenizer/1, tokenizer/2, tokenizer/3 and 2 more); "
        "1 of role artifact, 6 of role tokenizer."
    )
    assert told[1] == "Runtime and configuration: inputs, max_batch_size 16 → 32 changed."
    assert told[2] == "Envelope: memory_mib changed."


def test_a_draft_without_a_manifest_breaks_nothing() -> None:
    assert summary_of({}, {})[0] == "Files: the same 0, byte for byte."
