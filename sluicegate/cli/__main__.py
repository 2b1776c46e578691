"""`python -m sluicegate.cli`."""

import sys

from sluicegate.cli.main import main

sys.exit(main())
