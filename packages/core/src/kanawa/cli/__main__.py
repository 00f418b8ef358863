"""Lets `python -m kanawa.cli` do what `kanawa` does."""

import sys

from kanawa.cli.main import main

sys.exit(main())
