"""The short form of one's own text: a pattern, a file or a folder becomes the config of a corpus."""

from pathlib import Path

from kanawa_runtime.data.corpus import Corpus
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.file_patterns import is_pattern, matching_files, split_pattern
from kanawa_runtime.data.text_files import JsonLines, TextFiles

_RECORDS = frozenset({".jsonl", ".ndjson"})
_TEXTS = frozenset({".txt", ".text", ".md", ".rst", ".py"})


def names_files(text: str) -> bool:
    """Returns whether `--data TEXT` means files, not an experiment: a wildcard, a slash, a text's suffix, or a path.

    Names of experiments may have dots ("qwen3-0.6b"), and one may be the name of a folder here: ask the catalog first.
    """
    return is_pattern(text) or "/" in text or Path(text).suffix in _RECORDS | _TEXTS or Path(text).exists()


def own_corpus(pattern: str) -> Corpus.Config:
    """Returns the corpus of a glob, a file or a folder: `.jsonl` files are records with a "text" field, others text.

    Paths become absolute, so that a run resumes from any working folder. Raises CorpusError where nothing matches, or
    both kinds do.
    """
    files = matching_files(Path(), pattern)
    records = [file for file in files if file.suffix in _RECORDS]
    texts = [file for file in files if file.suffix not in _RECORDS]
    if records and texts:
        message = (
            f"{pattern!r} matches both records ({records[0]}) and text ({texts[0]}): give a pattern for one of them, "
            f"such as {str(Path(pattern).parent / '*.jsonl')!r}"
        )
        raise CorpusError(message)
    folder, glob = (pattern, "**/*") if Path(pattern).is_dir() else split_pattern(pattern)
    kind = JsonLines if records else TextFiles
    return kind.Config(files=(glob,), root=str(Path(folder).resolve()))
