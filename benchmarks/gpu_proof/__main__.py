"""`python -m benchmarks.gpu_proof`: see docs/gpu.md."""

import sys

from benchmarks.gpu_proof.cli import main

sys.exit(main())
