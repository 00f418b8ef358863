"""The data of a model that is only used: a folder of another library's weights says nothing of rows."""

from typing import NoReturn

from kanawa.contracts.data import DataSource

from kanawa_runtime.data.errors import CorpusError


class NoRows(DataSource):
    """Stands where an experiment has its data; fits every model that is served, and has no row."""

    packed = False
    fields = {}
    num_rows = 0
    digest = ""

    class Config(DataSource.Config):
        pass

    def row(self, index: int) -> NoReturn:
        """Raises CorpusError."""
        message = f"there is no row {index}: this model was opened to be used; name data with --data"
        raise CorpusError(message)
