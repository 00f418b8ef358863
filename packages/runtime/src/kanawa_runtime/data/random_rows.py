"""Rows of random numbers, for plans, benchmarks and tests: what sources without a corpus share."""

import functools
import hashlib
import json

from kanawa.config import to_json
from kanawa.contracts.data import DataSource


class RandomRows(DataSource):
    """Rows that the config and the row's number say all of: nothing is read, cached or waited for."""

    packed = False

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 (hex) of the config."""
        return hashlib.sha256(json.dumps(to_json(self.config), sort_keys=True).encode()).hexdigest()

    def check_index(self, index: int) -> None:
        """Raises IndexError for a row that doesn't exist."""
        if index < 0 or (self.num_rows is not None and index >= self.num_rows):
            message = f"row {index} doesn't exist: num_rows={self.num_rows}"
            raise IndexError(message)
