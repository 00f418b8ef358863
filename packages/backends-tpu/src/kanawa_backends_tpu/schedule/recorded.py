"""Cycles of this package's kernels by libtpu's schedules, so that quick plans know them without a compiler.

`tests/support/tpu_recorded.py` of the repository writes the table.
"""

import json
from pathlib import Path

from kanawa.plugins import RecordedCycles

TABLE = Path(__file__).with_name("recorded.json")


def recorded() -> list[RecordedCycles]:
    """Returns the table."""
    return [RecordedCycles(**row) for row in json.loads(TABLE.read_text(encoding="utf-8"))]
