"""A kernel that writes out of bounds, in a process of its own, while the product's reader listens."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.gpu_proof.outcome import Outcome, Verdict, unknown
from benchmarks.gpu_proof.parts import nvcc
from benchmarks.gpu_proof.scene import Scene
from serving.targets.agent.gpu_reader import GpuReader
from serving.targets.core.gpu import APPLICATION_XIDS, with_servers
from validators.core.gpu_checks import Finding, Watch, Window, checks_of

_LISTENS_S = 15.0
_SOURCE = r"""
#include <cstdio>
#include <unistd.h>
__global__ void write(unsigned char *at) { at[1ull << 45] = 1; }
int main() {
    unsigned char *memory;
    if (cudaMalloc(&memory, 1 << 20)) return 3;
    sleep(2);  // the driver lists the process meanwhile
    write<<<1, 1>>>(memory);
    cudaError_t found = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorString(found));
    fflush(stdout);
    sleep(1);
    return found ? 0 : 4;
}
"""


def xid(scene: Scene) -> Outcome:
    """Whether an Xid reaches a listener, after how long, and the finding of the product's check `xid`."""
    folder: Path = scene.config.work / "xid"
    folder.mkdir()
    (folder / "fault.cu").write_text(_SOURCE)
    compile_it = [nvcc(), "-o", str(folder / "fault"), str(folder / "fault.cu")]
    subprocess.run(compile_it, check=True, capture_output=True, timeout=60)
    reader, readings = GpuReader(), []
    began = time.time()
    readings.append(reader.read())
    with subprocess.Popen([str(folder / "fault")], stdout=subprocess.PIPE, text=True) as process:
        heard_s = None
        while time.time() - began < _LISTENS_S:
            readings.append(with_servers(reader.read(), {process.pid: 1}))
            if heard_s is None and any(gpu.xids for gpu in readings[-1].gpus):
                heard_s = time.time() - began
            if heard_s is not None and process.poll() is not None:
                break
            time.sleep(0.1)
        process.kill()
        words = (process.stdout.read() if process.stdout else "").strip()
    reader.close()
    codes = sorted({one.code for gpu in readings[-1].gpus for one in gpu.xids or ()})
    watch = Watch(1, began, (Window("load", began, readings[-1].at_s),), readings=readings, is_read=True)
    uuid = readings[-1].gpus[0].uuid if readings[-1].gpus else ""
    checks = (
        {one.name: one for one in checks_of(watch, uuid, {"alone": True, "max_power_capped_frac": None}, None)}
        if uuid
        else {}
    )
    found = checks.get("xid")
    numbers = {"error": words, "xids": codes, "heard_after_s": heard_s, "check": [str(found.finding), found.sentence] if found else None,
               "unknown": {gpu.uuid: dict(gpu.unknown) for gpu in readings[-1].gpus}}  # fmt: skip
    sentence = f"The process ended with '{words}'; the listener heard Xids {codes or 'none'}"
    if heard_s is None or found is None:
        return unknown(f"{sentence} within {_LISTENS_S:g} s.", **numbers)
    sentence = f"{sentence} {heard_s:.1f} s after its start; the check `xid` found {found.finding}: {found.sentence}."
    if set(codes) - APPLICATION_XIDS or found.finding is Finding.NODE:
        return Outcome(Verdict.REFUTED, f"{sentence} A program's fault is held against the hardware.", numbers)
    return (
        Outcome(Verdict.PROVED, sentence, numbers) if found.finding is Finding.RELEASE else unknown(sentence, **numbers)
    )
