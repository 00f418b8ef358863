"""Counts this environment's distributions and their bytes by RECORD; fails beyond the limits."""

import sys
from importlib import metadata

MAX_DISTRIBUTIONS = 50
MAX_MEGABYTES = 750

sizes = {
    distribution.metadata["Name"]: sum(file.size or 0 for file in distribution.files or ())
    for distribution in metadata.distributions()
}
megabytes = sum(sizes.values()) / 1e6
sys.stdout.write(f"{len(sizes)} distributions, {megabytes:.0f} MB\n")
for name in sorted(sizes, key=lambda name: -sizes[name])[:10]:
    sys.stdout.write(f"  {name:24} {sizes[name] / 1e6:6.0f} MB\n")
if len(sizes) > MAX_DISTRIBUTIONS or megabytes > MAX_MEGABYTES:
    sys.exit(f"the limits are {MAX_DISTRIBUTIONS} distributions and {MAX_MEGABYTES} MB")
