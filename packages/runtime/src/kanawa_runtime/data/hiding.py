"""Rows of another source in which an id of its own stands for tokens that are hidden."""

from typing import Any

from kanawa.config import Count

from kanawa_runtime.data.rows_of_source import RowsOfSource


class HidingRows(RowsOfSource):
    """Rows whose hidden tokens have the id `mask_id`, by default one more than the source's largest."""

    class Config(RowsOfSource.Config):
        mask_id: Count | None = None

    @property
    def mask_id(self) -> int:
        """The id that stands for a hidden token."""
        return self._source.vocab_size if self.config.mask_id is None else self.config.mask_id

    @property
    def vocab_size(self) -> int:
        """The source's, with room for the mask."""
        return max(self._source.vocab_size, self.mask_id + 1)

    @property
    def settings(self) -> list[Any]:
        """Those of the config, and the id of a hidden token."""
        return [self.mask_id, *super().settings]
