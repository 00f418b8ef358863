"""`--data`: the same experiment on other data, by name or by files."""

from pathlib import Path
from typing import Any

from kanawa.config import Config
from kanawa.contracts import DataSource
from kanawa.errors import ConfigError, UsageError, did_you_mean
from kanawa.local_path import local_path
from kanawa.plugins import component, host

from kanawa_runtime.data.corpus import Corpus
from kanawa_runtime.data.default_data import default_data
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.own_text import names_files, own_corpus
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.tokenizers.folder import other_tokenizers, unreadable
from kanawa_runtime.runs.run_directory import ORIGIN
from kanawa_runtime.runs.tokenizer_file import TokenizerError


def on_other_data(experiment: Config, text: str, tokenizer_file: Path | None = None) -> Config:
    """Returns the experiment with the data that `text` names; sizes, packing and learner stay.

    `text` is a catalogued experiment, whose data are taken, a catalogued data source, or files: a glob, a folder, a
    `.jsonl` or a text. With `tokenizer_file` text is read by that tokenizer, else by one learned from it.
    Raises UsageError for anything else, CorpusError for a glob that matches nothing.
    """
    named = _named(text)
    if named is not None:
        data = named.clone().set(sequence_length=experiment.data.sequence_length)
    elif names_files(str(local_path(text, "--data"))):
        data = _with_corpus(_text_of(experiment), own_corpus(text))
    else:
        raise UsageError(_unknown(text))
    if tokenizer_file is not None:
        data.set_tokenizer_file(str(tokenizer_file.resolve()))
    return experiment.clone().set(data=data)


def _named(text: str) -> DataSource.Config | None:
    """Returns the data of a catalogued experiment, or the catalogued source, of this name."""
    kinds = {state.kind for state in host().components() if state.name == text}
    if "experiments" in kinds:
        cfg = component("experiments", text)()
        if "data" not in cfg.fields():
            message = f"--data {text}: experiment {text!r} has no data"
            raise UsageError(message)
        rows: DataSource.Config = cfg.data
        return rows
    if "data" not in kinds:
        return None
    data: DataSource.Config = component("data", text).Config()
    try:
        data.clone().freeze()
    except ConfigError as error:
        message = f"--data {text}: {error}; give it whole with --set data={text} and further --set data.FIELD=VALUE"
        raise UsageError(message) from error
    return data


def _text_of(experiment: Any) -> DataSource.Config:
    """Returns the experiment's rows of text, or where its rows aren't text such as its model learns from."""
    data = experiment.data
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
    names = {state.name for kind in ("experiments", "data") for state in host().components(kind)}
    return (
        f"--data {text}: no experiment and no data source is called so, and there is no such file or folder"
        f"{did_you_mean(text, names)}; files are written as 'folder/**/*.txt', a folder, or a .jsonl or .txt file"
    )
