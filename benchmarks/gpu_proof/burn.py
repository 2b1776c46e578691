"""Keeps a GPU at work: `python -m benchmarks.gpu_proof.burn SECONDS [SIZE]` multiplies bf16 matrices, and prints how often."""

from __future__ import annotations

import importlib
import json
import sys
import time


def burn(seconds: float, size: int) -> dict[str, float]:
    torch = importlib.import_module("torch")
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    print("ready", flush=True)
    began, products = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        products += 10
    lasted = time.monotonic() - began
    return {"products": products, "seconds": lasted, "tflops": products * 2 * size**3 / lasted / 1e12}


if __name__ == "__main__":
    print(json.dumps(burn(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8192)))
