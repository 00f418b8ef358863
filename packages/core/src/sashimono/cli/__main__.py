"""Lets `python -m sashimono.cli` do what `sashimono` does."""

import sys

from sashimono.cli.main import main

sys.exit(main())
