"""`--data`: the same experiment on other data, by name or by files; and the data of a model that came without any."""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from kanawa.composition.modifiers import parse_modifier
from kanawa.config import Config, apply_override
from kanawa.contracts import Batch, CausalLM, DataSource, EncoderDecoderBatch, MaskedLM, Model, Pretrained
from kanawa.errors import ConfigError, KanawaError, UsageError, did_you_mean
from kanawa.plugins import component, host

from kanawa_runtime.data.corpus import Corpus
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.own_files import Part, names_files, own_corpus, parts_of
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.records.listing import is_pattern
from kanawa_runtime.data.rows_of_source import RowsOfSource
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.span_corruption import NUM_SENTINELS, SpanCorruption
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.byte_alphabet import FIRST_LEARNED_ID
from kanawa_runtime.data.tokenizers.load import other_tokenizers, unreadable
from kanawa_runtime.runs.run_directory import ORIGIN
from kanawa_runtime.runs.tokenizer_file import TokenizerError

#: What `--data` may name, the first that has the name wins.
_KINDS = ("experiments", "data", "corpora")
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.+)")


def reads_files(text: str) -> bool:
    """Returns whether `--data TEXT` is read from files or a corpus: no catalogued experiment or source is called so."""
    if _catalogued(text) is None and len(parts := parts_of(text)) > 1:
        return all(reads_files(part.text) for part in parts)
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


def default_data(model: Any, sequence_length: int) -> DataSource.Config | None:
    """Returns rows that a model of text can learn by its config; all ids fit its vocabulary.

    The text is Python's own library, its tokenizer learned from it and at most as large as the model's vocabulary. Of
    models of other records, rows that are still to be named; None where no source has such.
    """
    kind: Any = model._target
    made: Callable[..., DataSource.Config] | None = None
    hiding = 0
    if issubclass(kind, MaskedLM):
        made, hiding = MaskedTokens.Config, 1
    elif kind.batch_of(model) is EncoderDecoderBatch:
        made, hiding = SpanCorruption.Config, NUM_SENTINELS
    elif not issubclass(kind, CausalLM) or kind.batch_of(model) is not Batch:
        return unnamed_data(model)
    # Without the ids for what is hidden.
    room = model.vocab_size - hiding
    source: DataSource.Config
    if room > FIRST_LEARNED_ID:
        tokenizer = BytePairTokenizer.Config()
        if room < tokenizer.vocab_size:
            tokenizer.set(vocab_size=room)
        source = TextSource.Config(sequence_length=sequence_length, tokenizer=tokenizer)
    elif room > 0:
        source = RandomTokens.Config(sequence_length=sequence_length, vocab_size=room)
    else:
        return None
    return source if made is None else made(sequence_length=sequence_length, source=source)


def unnamed_data(model: Any) -> DataSource.Config | None:
    """Returns rows of the record that a model learns from, in its sizes, whose files are still to be named."""
    made = (config.unnamed(model) for config in _sources_of(model._target.batch_of(model)))
    return next((config for config in made if config is not None), None)


def _sources_of(record: type) -> list[type[DataSource.Config]]:
    """Returns the configs of the catalogued sources whose rows are such records."""
    named = (component("data", state.key) for state in host().components("data") if state.state.usable)
    return [source.Config for source in named if source.batch is record]


def on_other_data(experiment: Config, text: str, tokenizer_file: Path | None = None) -> Config:
    """Returns the experiment with the data that `text` names; sizes, packing and learner stay.

    `text` is a catalogued experiment, whose data are taken, a catalogued data source or corpus, with fields as
    `NAME:field=value,…`, or files: a glob, a folder or a file, here or at an address, with options as
    `ADDRESS:field=value,…`. Several are separated by commas; with weights, `A*0.7,B*0.3`, they become a mixture. With
    `tokenizer_file` text is read by that tokenizer, else by that of a pretrained part, else by one learned from it.
    Raises UsageError for anything else, CorpusError for a glob that matches nothing.
    """
    parts = parts_of(text)
    if not parts:
        raise UsageError(_unknown(text))
    weighted = parts[0].weight is not None
    named = None if weighted else _named(experiment, text)
    if weighted:
        data = _mixture(experiment, parts)
    elif named is not None:
        data = named.clone()
        if isinstance(experiment.data, DataSource.Config) and not _sets_length(text):
            data.set(sequence_length=experiment.data.sequence_length)
    else:
        unknown = [part.text for part in parts if not names_files(part.text)]
        if unknown:
            raise UsageError(_unknown(text if len(unknown) == len(parts) else unknown[0]))
        data = _other_rows(experiment, parts) or _with_corpus(
            _text_of(experiment), own_corpus(*(part.text for part in parts))
        )
    if tokenizer_file is None:
        tokenizer_file = next(iter(_tokenizers_of(experiment)), None)
    if tokenizer_file is not None:
        data.set_tokenizer_file(str(tokenizer_file.resolve()))
    return _fitted(experiment.clone().set(data=data))


def _tokenizers_of(experiment: Config) -> Iterator[Path]:
    """Yields the tokenizers of the parts of the model that other models were trained with."""
    for _, node in experiment.walk():
        if isinstance(node, Pretrained.Config) and node.tokenizer:
            yield Path(node.tokenizer)


def _other_rows(experiment: Any, parts: Sequence[Part]) -> DataSource.Config | None:
    """Returns what a source of the records that the model learns from makes of files; None where they are tokens'.

    The experiment's own source is asked first, then those of the catalog.
    """
    model = experiment.model
    kind: Any = model._target
    wanted = kind.batch_of(model) if isinstance(kind, type) and issubclass(kind, Model) else Batch
    if wanted is Batch:
        return None
    own: list[Any] = [type(experiment.data)] if isinstance(experiment.data, DataSource.Config) else []
    asked = [config for config in own if config._target.batch is wanted] + _sources_of(wanted)
    if asked and len(parts) > 1:
        message = f"--data names {len(parts)} places; rows of {wanted.__name__} come from one folder or pattern"
        raise UsageError(message)
    made = (config.of_files(parts[0].text, experiment) for config in asked)
    return next((config for config in made if config is not None), None)


def _fitted(experiment: Any) -> Config:
    """Returns the experiment with as many classes in its model as the data have, by their names."""
    model = experiment.model
    names = experiment.data.build().class_names if "num_classes" in model.fields() else ()
    if names:
        model.set(num_classes=len(names))
        if "class_names" in model.fields():
            model.set(class_names=names)
    result: Config = experiment
    return result


def _mixture(experiment: Config, parts: Sequence[Part]) -> DataSource.Config:
    """Returns the mixture of parts by weight; where rows are masked, they are masked after mixing."""
    sources: dict[str, Any] = {}
    for part in parts:
        data = on_other_data(experiment, part.text).data
        inner = data.source if isinstance(data, RowsOfSource.Config) else data
        if inner in sources.values():
            message = f"--data names {part.text} twice: name it once, with the sum of its weights"
            raise UsageError(message)
        sources[_free_name(part.text, sources)] = inner
    length = next(iter(sources.values())).sequence_length
    weights = {name: part.weight or 0.0 for name, part in zip(sources, parts, strict=True)}
    mixture = Mixture.Config(sequence_length=length, sources=sources, weights=weights)
    rows = experiment.clone().data
    if isinstance(rows, RowsOfSource.Config):
        rows.set(source=mixture)
        return rows
    return mixture


def _free_name(text: str, used: Container[str]) -> str:
    """Returns a short name of a part for events and reports: the first word of its path that isn't a pattern."""
    address = text.partition(":")[0] if "://" not in text else text.partition("://")[2]
    words = [re.sub(r"\W+", "_", Path(part).name.split(".")[0]) for part in Path(address).parts if not is_pattern(part)]
    name = base = next((word for word in reversed(words) if word.strip("_")), "data").strip("_").lower()
    number = 1
    while name in used:
        number += 1
        name = f"{base}_{number}"
    return name


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
    if not isinstance(data, DataSource.Config) or not data.build().is_named:
        kind = experiment.model._target
        message = f"--data gives text, and {kind.__qualname__} learns from records of {kind.batch.__name__}"
        raise UsageError(message)
    inner = data.source if isinstance(data, RowsOfSource.Config) else data
    if isinstance(inner, TextSource.Config):
        return data
    made = default_data(experiment.model, data.sequence_length)
    if made is None:
        message = f"--data gives text, and {experiment.model._target.__qualname__} learns from none"
        raise UsageError(message)
    return made


def _with_corpus(data: DataSource.Config, corpus: Corpus.Config) -> DataSource.Config:
    text = data.clone()
    inner = text.source if isinstance(text, RowsOfSource.Config) else text
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
    inner = data.source if isinstance(data, RowsOfSource.Config) else data
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
        f"{did_you_mean(name, names)}; files are written as 'folder/**/*.txt', a folder, or a "
        "file such as web.parquet, chat.jsonl or book.txt"
    )
