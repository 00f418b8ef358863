"""Opens a run, or a folder of another library, to serve: engine, tokenizer, template, and other weights later."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.config import to_json
from kanawa.contracts import CausalLM, MakesPictures, ReadsPictures, RepresentsText, Transcribes
from kanawa.errors import UsageError

from kanawa_runtime.data.chats.picture_marks import PictureMarks
from kanawa_runtime.data.chats.template import ChatTemplate, template_of
from kanawa_runtime.data.images.decode import pillow
from kanawa_runtime.data.speech.letters import Letters
from kanawa_runtime.data.speech.source import SpeechSource
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.data.tokenizers.load import other_tokenizers, tokenizer_of, unreadable
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.adapter_folder import load_adapter
from kanawa_runtime.runs.imported import outline_of
from kanawa_runtime.runs.open_run import OpenedRun, open_run
from kanawa_runtime.runs.run_directory import ORIGIN, read_config
from kanawa_runtime.runs.run_path import looks_like_run
from kanawa_runtime.runs.tokenizer_file import tokenizer_file
from kanawa_runtime.serve.disaggregated.pairing import Pairing
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.speculation import Draft
from kanawa_runtime.serve.generate import check_generates
from kanawa_runtime.serve.http.config import TrainingConfig
from kanawa_runtime.serve.http.served_model import ServedModel, special_texts
from kanawa_runtime.serve.pictures.engine import DrawingEngine
from kanawa_runtime.serve.pooling.engine import Pooling, PoolingEngine
from kanawa_runtime.serve.speech.engine import TranscribingEngine
from kanawa_runtime.serve.speech.transcriber import rules_of
from kanawa_runtime.serve.structured.grammars import Grammars

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a served model lies, and how it is opened there: when the server starts, and for other weights later."""

    directory: Path
    target: str | None
    modifiers: tuple[str, ...]

    def open(self, step: int | None) -> OpenedRun:
        """Returns the run at a step."""
        return open_run(self.directory, target=self.target, modifiers=self.modifiers, step=step, serves=True)

    def reloading(self, served: ServedModel, opened: OpenedRun) -> ServedModel:
        """Returns `served` with what opens other weights; UsageError there where the folder has another model."""
        architecture = to_json(opened.composition.config.model)

        def reload(step: int | None) -> OpenedRun:
            again = self.open(step)
            if to_json(again.composition.config.model) != architecture:
                message = f"{self.directory} holds another model than the one that is served; start a server for it"
                raise UsageError(message)
            return again

        served.reload = reload
        return served

    def without_texts(
        self, opened: OpenedRun, name: str | None, engine: Any, tokenizer: Tokenizer, why: str, **more: Any
    ) -> ServedModel:
        """Returns a model that writes no texts, with `why` it takes no grammars."""
        served = ServedModel(
            name=name or self.directory.resolve().name,
            engine=engine,
            tokenizer=tokenizer,
            template=template_of({}),
            no_grammars=why,
            step=opened.step,
            **more,
        )
        return self.reloading(served, opened)


def served_model(
    directory: Path,
    config: EngineConfig,
    *,
    name: str | None = None,
    step: int | None = None,
    target: str | None = None,
    template: Path | None = None,
    adapters: Mapping[str, Path] | None = None,
    draft: Path | None = None,
    modifiers: tuple[str, ...] = (),
    pairing: Pairing | None = None,
    training: TrainingConfig | None = None,
) -> ServedModel:
    """Returns the model of a folder behind an engine that has not started yet.

    `adapters` are LoRAs that clients may ask for by their names; `draft` is a model that guesses for this one;
    `modifiers` are texts as `--modify` takes them; `pairing` is with another server; with `training` the engine has
    room for the adapters that clients train. Raises UsageError for a model that
    generates no text, or has no tokenizer.
    """
    check_generates(directory)
    own = name or directory.resolve().name
    if own in (adapters or {}):
        message = f"the model and an adapter are both called {own!r}: give the model another with --name"
        raise UsageError(message)
    if draft is not None and not config.speculative_tokens:
        message = (
            f"the draft {draft} guesses nothing: engine.speculative_tokens is 0; say how many it guesses a step, "
            "as with --set engine.speculative_tokens=4"
        )
        raise UsageError(message)
    place = _Place(directory, target, modifiers)
    opened = place.open(step)
    tokenizer = _tokenizer(opened, directory)
    chosen = template_of(tokenizer.folder_files(), template)
    read = {called: load_adapter(folder, opened.trainer.model.config) for called, folder in (adapters or {}).items()}
    if read or training is not None:
        # One slot more than are sampled from: that of an evicted adapter is free once its last sequence has ended.
        slots = len(read) + (0 if training is None else training.max_samplers + 1)
        ranks = [config.adapter_rank, *(adapter.rank for adapter in read.values())]
        ranks += [] if training is None else [training.max_rank]
        config = config.clone().set(adapter_slots=max(config.adapter_slots, slots), adapter_rank=max(ranks))
    if pairing is not None:
        config = config.clone().set(transfers_pages=True)
    engine = LLMEngine.of_run(opened, config, _draft(draft, tokenizer, target))
    for called, adapter in read.items():
        engine.add_adapter(called, adapter)
    grammars, no_grammars = None, ""
    try:
        grammars = Grammars(tokenizer, engine.limits.vocab_size)
    except UsageError as error:
        # All else is served: a tokenizer without a stop token, for one, is none of other requests' concern.
        no_grammars = str(error)
        logger.warning("structured output isn't offered: %s", error)
    served = ServedModel(
        name=own,
        engine=engine if pairing is None else pairing.paired(engine, read),
        tokenizer=tokenizer,
        template=chosen,
        step=opened.step,
        grammars=grammars,
        no_grammars=no_grammars,
        adapters=tuple(read),
        opened=None if training is None else opened,
        pictures=_pictures(opened, chosen, tokenizer),
    )
    return place.reloading(served, opened)


def pools(directory: Path, pooling: str | None) -> bool:
    """Returns whether the model of a folder is served by its vectors or labels: as asked, or as it writes no texts."""
    stored = None if pooling is not None else outline_of(directory)
    kind = None if stored is None else stored.config._target
    if stored is None or kind is None or not issubclass(kind, RepresentsText):
        return pooling is not None
    return not issubclass(kind, CausalLM) or kind.labels_of(stored.config) is not None


def pooled_model(
    directory: Path,
    config: EngineConfig,
    pooling: Pooling | None = None,
    *,
    name: str | None = None,
    step: int | None = None,
    target: str | None = None,
    modifiers: tuple[str, ...] = (),
) -> ServedModel:
    """Returns the model of a folder behind an engine that pools texts and has not started yet.

    Raises UsageError for a model that can't be pooled so, or has no tokenizer.
    """
    place = _Place(directory, target, modifiers)
    opened = place.open(step)
    tokenizer = _tokenizer(opened, directory)
    engine = PoolingEngine(opened, config, pooling)
    return place.without_texts(opened, name, engine, tokenizer, "this model writes no texts")


def transcribes(directory: Path) -> bool:
    """Returns whether the model of a folder, or of a run, is one of speech that transcribes."""
    return _holds(directory, Transcribes)


def draws(directory: Path) -> bool:
    """Returns whether the model of a folder, or of a run, makes pictures."""
    return _holds(directory, MakesPictures)


def _holds(directory: Path, role: type) -> bool:
    stored = outline_of(directory)
    if stored is None and not looks_like_run(directory):
        return False
    model = stored.config if stored is not None else read_config(directory).model
    return model._target is not None and issubclass(model._target, role)


def drawing_model(
    directory: Path,
    config: EngineConfig,
    *,
    name: str | None = None,
    step: int | None = None,
    target: str | None = None,
    modifiers: tuple[str, ...] = (),
) -> ServedModel:
    """Returns the model of a folder behind an engine that makes pictures and has not started yet."""
    place = _Place(directory, target, modifiers)
    opened = place.open(step)
    model: Any = opened.composition.config.model
    # One of labels reads no texts; servers have a tokenizer of every model.
    is_text = model._target.made_by(model).prompt_length is not None
    tokenizer = _tokenizer(opened, directory) if is_text else ByteTokenizer.Config().build()
    engine = DrawingEngine(opened, config, tokenizer)
    return place.without_texts(opened, name, engine, tokenizer, "this model makes pictures")


def transcribing_model(
    directory: Path,
    config: EngineConfig,
    *,
    name: str | None = None,
    step: int | None = None,
    target: str | None = None,
    modifiers: tuple[str, ...] = (),
) -> ServedModel:
    """Returns the model of a folder behind an engine that transcribes speech and has not started yet."""
    place = _Place(directory, target, modifiers)
    opened = place.open(step)
    source, model = opened.trainer.source, opened.composition.config.model
    if isinstance(source, SpeechSource) and tokenizer_file(opened.directory) is None:
        tokenizer: Tokenizer = Letters.Config(alphabet=source.config.alphabet).build()
    else:
        tokenizer = _tokenizer(opened, directory)
    files = tokenizer.folder_files()
    start_ids = model._target.hearing_of(model).start_ids
    special = special_texts(files)
    engine = TranscribingEngine(opened, config, rules_of(special, files, model.vocab_size, start_ids))
    return place.without_texts(opened, name, engine, tokenizer, "this model transcribes speech", special=special)


def _tokenizer(opened: OpenedRun, directory: Path) -> Tokenizer:
    tokenizer = tokenizer_of(opened)
    if tokenizer is None:
        places = [folder for folder in (directory / ORIGIN, directory) if other_tokenizers(folder)]
        message = f"{unreadable(places[0] if places else directory)}; a server can't take texts without one"
        raise UsageError(message)
    return tokenizer


def _pictures(opened: OpenedRun, template: ChatTemplate, tokenizer: Tokenizer) -> PictureMarks | None:
    """Returns where pictures are in a model's texts, None of one that reads none; raises CorpusError without Pillow."""
    model = opened.trainer.model
    if not isinstance(model, ReadsPictures):
        return None
    pillow()
    return PictureMarks(type(model).picture_tokens(model.config), template, tokenizer)


def _draft(directory: Path | None, tokenizer: Tokenizer, target: str | None) -> Draft | None:
    """Returns the draft model; raises UsageError where its tokenizer differs from the model's."""
    if directory is None:
        return None
    check_generates(directory)
    opened = open_run(directory, target=target, serves=True)
    own = tokenizer_of(opened)
    if own is None or tuple(own.tokens) != tuple(tokenizer.tokens):
        message = f"{directory} can't be the draft of this model: its tokenizer is another one"
        raise UsageError(message)
    model = opened.trainer.model
    assert isinstance(model, CausalLM)
    return Draft(model, opened.params, opened.state)
