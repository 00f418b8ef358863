"""The records behind rows that `--data` made, for those who read them as something else than text."""

from typing import Any

from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.record import Records
from kanawa_runtime.data.records.source import RecordSource
from kanawa_runtime.data.rows_of_source import RowsOfSource
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import TextOfRecords


def records_of(data: Any) -> Records.Config | None:
    """Returns the records that the config of a data source reads; None where it reads none."""
    inner = data.source if isinstance(data, RowsOfSource.Config) else data
    if isinstance(inner, RecordSource.Config):
        return inner.records
    if isinstance(inner, TextSource.Config) and isinstance(inner.corpus, TextOfRecords.Config):
        shared = inner.corpus.fields().keys() & RecordFiles.Config.fields().keys()
        return RecordFiles.Config(**{name: getattr(inner.corpus, name) for name in shared})
    return None
