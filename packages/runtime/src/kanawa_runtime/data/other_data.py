"""`--data`: the same experiment on other data, by name or by files; and the data of a model that came without any."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kanawa.composition.modifiers import parse_modifier
from kanawa.config import Config, apply_override
from kanawa.contracts import DataSource, MaskedLM
from kanawa.errors import ConfigError, KanawaError, UsageError, did_you_mean
from kanawa.local_path import local_path
from kanawa.plugins import component, host

from kanawa_runtime.data.corpus import Corpus
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.records.listing import is_pattern, matching_files, split_pattern
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import JsonLines, TextFiles
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.byte_alphabet import FIRST_LEARNED_ID
from kanawa_runtime.data.tokenizers.load import other_tokenizers, unreadable
from kanawa_runtime.runs.run_directory import ORIGIN
from kanawa_runtime.runs.tokenizer_file import TokenizerError

_RECORDS = frozenset({".jsonl", ".ndjson"})
#: What `--data` may name, the first that has the name wins.
_KINDS = ("experiments", "data", "corpora")
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.+)")
_TEXTS = frozenset({".txt", ".text", ".md", ".rst", ".py"})


def names_files(text: str) -> bool:
    """Returns whether `--data TEXT` means files, not an experiment: a wildcard, a slash, a text's suffix, or a path.

    Names of experiments may have dots ("qwen3-0.6b"), and one may be the name of a folder here: ask the catalog first.
    """
    return is_pattern(text) or "/" in text or Path(text).suffix in _RECORDS | _TEXTS or Path(text).exists()


def reads_files(text: str) -> bool:
    """Returns whether `--data TEXT` is read from files or a corpus: no catalogued experiment or source is called so."""
    found = _catalogued(text)
    return names_files(text) if found is None else found[0] == "corpora"


def named_data(texts: Sequence[str]) -> dict[str, str]:
    """Returns data by name, `NAME=DATA` or else the text itself; raises UsageError for a name used twice."""
    named: dict[str, str] = {}
    for text in texts:
        match = _NAMED.fullmatch(text)
        name, data = (match[1], match[2]) if match else (text, text)
        if name in named:
            message = f"two sets of data are called {name!r}; name each: NAME=DATA"
            raise UsageError(message)
        named[name] = data
    return named


def evaluation_sets(experiment: Config, texts: Sequence[str]) -> dict[str, DataSource.Config]:
    """Returns what `evaluation.sets` gets of `--eval-data`."""
    sets: dict[str, DataSource.Config] = {
        name: on_other_data(experiment, text).data for name, text in named_data(texts).items()
    }
    return sets


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


def default_data(model: Any, sequence_length: int) -> DataSource.Config:
    """Returns rows that a CausalLM's or MaskedLM's config can learn; all ids fit the model's vocabulary.

    The text is Python's own library, its tokenizer learned from it and at most as large as the model's vocabulary.
    """
    masked = issubclass(model._target, MaskedLM)
    # A masked model needs one more id, for what is hidden.
    room = model.vocab_size - masked
    source: DataSource.Config
    if room > FIRST_LEARNED_ID:
        tokenizer = BytePairTokenizer.Config()
        if room < tokenizer.vocab_size:
            tokenizer.set(vocab_size=room)
        source = TextSource.Config(sequence_length=sequence_length, tokenizer=tokenizer)
    else:
        source = RandomTokens.Config(sequence_length=sequence_length, vocab_size=room)
    return MaskedTokens.Config(sequence_length=sequence_length, source=source) if masked else source


def on_other_data(experiment: Config, text: str, tokenizer_file: Path | None = None) -> Config:
    """Returns the experiment with the data that `text` names; sizes, packing and learner stay.

    `text` is a catalogued experiment, whose data are taken, a catalogued data source or corpus, with fields as
    `NAME:field=value,…`, or files: a glob, a folder, a `.jsonl` or a text. With `tokenizer_file` text is read by that
    tokenizer, else by one learned from it. Raises UsageError for anything else, CorpusError for a glob that matches
    nothing.
    """
    named = _named(experiment, text)
    if named is not None:
        data = named.clone()
        if isinstance(experiment.data, DataSource.Config) and not _sets_length(text):
            data.set(sequence_length=experiment.data.sequence_length)
    elif names_files(str(local_path(text, "--data"))):
        data = _with_corpus(_text_of(experiment), own_corpus(text))
    else:
        raise UsageError(_unknown(text))
    if tokenizer_file is not None:
        data.set_tokenizer_file(str(tokenizer_file.resolve()))
    return experiment.clone().set(data=data)


def _catalogued(text: str) -> tuple[str, str, dict[str, str]] | None:
    """Returns kind, name and fields of `NAME[:field=value,…]` for what the catalog has; None for any other text."""
    try:
        name, fields = parse_modifier(text)
    except ConfigError:
        return None
    kinds = {state.kind for state in host().components() if name in (state.name, state.key)}
    kind = next((kind for kind in _KINDS if kind in kinds), None)
    return None if kind is None else (kind, name, fields)


def _sets_length(text: str) -> bool:
    """Returns whether `NAME:field=value,…` has a length of rows of its own."""
    found = _catalogued(text)
    return found is not None and "sequence_length" in found[2]


def _named(experiment: Any, text: str) -> DataSource.Config | None:
    """Returns the data of a catalogued experiment, a catalogued source, or text of a catalogued corpus, by its name."""
    found = _catalogued(text)
    if found is None:
        return None
    kind, name, fields = found
    made = component(kind, name)
    cfg = made() if kind == "experiments" else made.Config()
    if kind == "experiments":
        if "data" not in cfg.fields():
            message = f"--data {text}: experiment {name!r} has no data"
            raise UsageError(message)
        cfg = cfg.data
    try:
        for field, value in fields.items():
            apply_override(cfg, f"{field}={value}")
    except KanawaError as error:
        error.add_note(f"in --data {text}")
        raise
    rows: DataSource.Config = _with_corpus(_text_of(experiment), cfg) if kind == "corpora" else cfg
    return rows


def _text_of(experiment: Any) -> DataSource.Config:
    """Returns the experiment's rows of text, or where its rows aren't text such as its model learns from."""
    data = experiment.data
    if not isinstance(data, DataSource.Config):
        kind = experiment.model._target
        message = f"--data gives text, and {kind.__qualname__} learns from records of {kind.batch.__name__}"
        raise UsageError(message)
    inner = data.source if isinstance(data, MaskedTokens.Config) else data
    return data if isinstance(inner, TextSource.Config) else default_data(experiment.model, data.sequence_length)


def _with_corpus(data: DataSource.Config, corpus: Corpus.Config) -> DataSource.Config:
    text = data.clone()
    inner = text.source if isinstance(text, MaskedTokens.Config) else text
    if not isinstance(inner, TextSource.Config):
        message = (
            f"--data gives text, which needs more than 259 token ids, but this model has {inner.vocab_size}; "
            "take a model with more, or give a data source by name"
        )
        raise UsageError(message)
    inner.set(corpus=corpus)
    return text


def check_read_by_its_own(data: DataSource.Config, directory: Path) -> None:
    """Raises TokenizerError where text would go to the model of a folder through another tokenizer than its own.

    So it would where its own lies there in a form that isn't read: the model would learn its language anew.
    """
    inner = data.source if isinstance(data, MaskedTokens.Config) else data
    if not isinstance(inner, TextSource.Config) or inner.tokenizer_file is not None:
        return
    for folder in (directory, directory / ORIGIN):
        if other_tokenizers(folder):
            raise TokenizerError(unreadable(folder))


def _unknown(text: str) -> str:
    names = {state.name for kind in _KINDS for state in host().components(kind)}
    name = text.partition(":")[0]
    if name in names:
        try:
            parse_modifier(text)
        except ConfigError as error:
            return f"--data {text}: {error}"
    return (
        f"--data {text}: no experiment, data source or corpus is called so, and there is no such file or folder"
        f"{did_you_mean(name, names)}; files are written as 'folder/**/*.txt', a folder, or a .jsonl or .txt file"
    )
