"""Runs the command line with one import that takes its time: for signals that come just then.

`python slow_start.py ARGUMENTS`: SLOW_IMPORT names the module, SLOW_REACHED the file that says that it has begun,
and SLOW_SWALLOWS has it catch whatever is raised meanwhile, as some libraries do.
"""

import importlib.abc
import os
import pathlib
import sys
import time

SECONDS = 120


class SlowFinder(importlib.abc.MetaPathFinder):
    """Finds nothing, slowly, when the module is first asked for."""

    def find_spec(self, name, path, target=None):
        """Waits before the other finders get their turn."""
        del path, target
        if name == os.environ["SLOW_IMPORT"]:
            sys.meta_path.remove(self)
            pathlib.Path(os.environ["SLOW_REACHED"]).touch()
            try:
                for _ in range(SECONDS * 100):
                    time.sleep(0.01)
            except BaseException:
                if not os.environ.get("SLOW_SWALLOWS"):
                    raise


if __name__ == "__main__":
    sys.meta_path.insert(0, SlowFinder())
    from kanawa.cli.main import main

    sys.exit(main())
