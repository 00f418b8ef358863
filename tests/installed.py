"""Fails unless the named modules come from site-packages: tests see wheels, not the source."""

import importlib
import pathlib
import sys
import sysconfig

site = pathlib.Path(sysconfig.get_path("purelib")).resolve()
for name in sys.argv[1:]:
    place = pathlib.Path(importlib.import_module(name).__file__ or "").resolve()
    if site not in place.parents:
        sys.exit(f"{name} comes from {place}; its tests are for the wheel installed in {site}")
