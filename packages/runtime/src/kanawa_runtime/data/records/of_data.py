"""The records behind rows that `--data` made, for those who read them as something else than text."""

from typing import Any

from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.record import Records
from kanawa_runtime.data.records.source import RecordSource
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import JsonLines


def records_of(data: Any) -> Records.Config | None:
    """Returns the records that the config of a data source reads; None where it reads none."""
    inner = data.source if isinstance(data, MaskedTokens.Config) else data
    if isinstance(inner, RecordSource.Config):
        return inner.records
    if isinstance(inner, TextSource.Config) and isinstance(inner.corpus, JsonLines.Config):
        return RecordFiles.Config(files=inner.corpus.files, root=inner.corpus.root)
    return None
