"""Reading a saved tokenizer: one of ours, or the files that Hugging Face models come with; and the one of a run."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.contracts import MakesPictures
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_bytes, guarded_json, parsed_json

from kanawa_runtime.data.tokenizers.huggingface import HuggingFaceTokenizer
from kanawa_runtime.data.tokenizers.sentencepiece import library_files, read_model
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.runs.run_directory import ORIGIN
from kanawa_runtime.runs.tokenizer_file import (
    CHAT_TEMPLATE,
    MOST_TOKENIZER_BYTES,
    SENTENCEPIECE,
    SETTINGS,
    TOKENIZER,
    TokenizerError,
    is_foreign,
    tokenizer_errors,
    tokenizer_file,
    tokenizer_from_bytes,
)

#: An id is a row of the model's tables; a file of a few bytes may name one that fills the memory.
MOST_IDS = 4_000_000
#: Of models without `tokenizer.json`, and what to do about each.
_UNREADABLE = {
    "vocab.json": "a vocabulary of the older kind",
    "vocab.txt": "a vocabulary of the older kind",
    "tekken.json": "a tekken vocabulary",
}
#: Names that end tokens go by where no file says which one it is.
_END_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")


def unreadable(folder: Path) -> str:
    """Returns why a folder without `tokenizer.json` has no tokenizer we read, and what to do."""
    others = other_tokenizers(folder)
    if not others:
        return f"{folder} has no {TOKENIZER}"
    return (
        f"{folder} has {others[0]}, and no {TOKENIZER} or SentencePiece model, which are read; write one with "
        f"transformers: AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def other_tokenizers(folder: Path) -> list[str]:
    """Returns the tokenizers in a folder that are of kinds we don't read, each with what it is."""
    named = [f"{name}, {kind}" for name, kind in _UNREADABLE.items() if (folder / name).exists()]
    return named + [f"{path.name}, a tiktoken vocabulary" for path in sorted(folder.glob("*.tiktoken"))]


def folder_state(folder: Path) -> dict[str, Any]:
    """Returns the state of the tokenizer in a folder; raises TokenizerError, ValueError where a file can't be right."""
    names = [name for name in (TOKENIZER, *SETTINGS, CHAT_TEMPLATE) if os.path.lexists(folder / name)]
    files = {name: _text(folder, name) for name in names}
    pieces = next((name for name in SENTENCEPIECE if os.path.lexists(folder / name)), None)
    if TOKENIZER not in files and pieces is not None:
        model = read_model(guarded_bytes(folder / pieces, folder, most=MOST_TOKENIZER_BYTES))
        content, settings = library_files(model, _parsed(SETTINGS[0], files.get(SETTINGS[0], "{}")))
        files |= {TOKENIZER: json.dumps(content), SETTINGS[0]: json.dumps(settings, indent=1)}
    if TOKENIZER not in files:
        raise TokenizerError(unreadable(folder))
    return files_state(files, _model_config(folder))


def files_state(files: Mapping[str, str], model_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of the tokenizer that these texts make up; `model_config` is the model's config.json or {}."""
    content = _parsed(TOKENIZER, files[TOKENIZER])
    if not isinstance(content.get("model"), dict) or "vocab" not in content["model"]:
        message = f"{TOKENIZER} has no model with a vocabulary"
        raise ValueError(message)
    settings = {name: _parsed(name, files[name]) for name in SETTINGS if name in files}
    return {"files": dict(files), "special": _special_ids(content, settings, model_config)}


def _special_ids(
    content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], model_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the ids that begin, end and pad, all that stop an answer, and one more than the model's largest id."""
    ids = {str(token["content"]): token["id"] for token in content.get("added_tokens") or []}
    vocab = content["model"]["vocab"]
    # A Unigram model lists (token, score) by id, all others map tokens to ids.
    ids |= vocab if isinstance(vocab, dict) else {str(entry[0]): index for index, entry in enumerate(vocab)}
    for token, number in ids.items():
        if type(number) is not int or not 0 <= number < MOST_IDS:
            message = f"token {token[:40]!r} has id {str(number)[:40]}, expected 0 to {MOST_IDS - 1:,}"
            raise ValueError(message)
    said = [settings.get(name, {}) for name in SETTINGS[:2]]
    numbers = [settings.get("generation_config.json", {}), model_config]

    def named(role: str) -> int | None:
        for source in said:
            token = source.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and token in ids:
                return int(ids[token])
        listed = [number for source in numbers for number in _numbers(source.get(f"{role}_token_id"))]
        return listed[0] if listed else None

    end = named("eos")
    if end is None:
        end = next((ids[name] for name in _END_NAMES if name in ids), None)
    stop = {number for source in numbers for number in _numbers(source.get("eos_token_id"))}
    stop |= set() if end is None else {end}
    limit = model_config.get("vocab_size")
    return {
        "bos": named("bos"),
        "eos": end,
        "pad": named("pad"),
        "stop": sorted(stop),
        "limit": limit if type(limit) is int and limit > 0 else None,
    }


def _numbers(value: Any) -> list[int]:
    """Returns the ids of a setting, which may be one, several or none; raises ValueError for what is no id."""
    # The first Llamas say -1 where they mean none.
    listed = value if isinstance(value, list) else [] if value in (None, -1) else [value]
    wrong = [number for number in listed if type(number) is not int or not 0 <= number < MOST_IDS]
    if wrong:
        message = f"a token's id is {str(wrong[0])[:40]}, expected 0 to {MOST_IDS - 1:,}"
        raise ValueError(message)
    return listed


def _text(folder: Path, name: str) -> str:
    return guarded_bytes(folder / name, folder, most=MOST_TOKENIZER_BYTES).decode("utf-8")


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        content = parsed_json(text)
    except ValueError as error:
        message = f"{name}: {error}"
        raise ValueError(message) from error
    if not isinstance(content, dict):
        message = f"{name} holds a {type(content).__name__}, expected an object"
        raise ValueError(message)
    return content


def _model_config(folder: Path) -> dict[str, Any]:
    """Returns the model's own config, whose ids and size count where the tokenizer's files say nothing; {} without."""
    try:
        content = guarded_json(folder / "config.json", folder, most=MOST_TOKENIZER_BYTES)
    except (OSError, UnreadableFileError):
        return {}
    return content if isinstance(content, dict) and "$type" not in content else {}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Returns the tokenizer saved at `path`, or of a Hugging Face folder, its `tokenizer.json` or `tokenizer.model`.

    Raises TokenizerError that names the file.
    """
    path = Path(path)
    file = path
    if path.is_dir():
        here = [path / name for name in (TOKENIZER, *SENTENCEPIECE) if os.path.lexists(path / name)]
        if not here:
            raise TokenizerError(unreadable(path))
        file = here[0]
    with tokenizer_errors(file):
        if file.name in SENTENCEPIECE:
            pieces: Tokenizer = HuggingFaceTokenizer.Config().build(state=folder_state(file.parent))
            return pieces
        content = guarded_bytes(file, path if path.is_dir() else None, most=MOST_TOKENIZER_BYTES)
        if is_foreign(content):
            tokenizer: Tokenizer = HuggingFaceTokenizer.Config().build(state=folder_state(file.parent))
        else:
            tokenizer = tokenizer_from_bytes(content)
        return tokenizer


def tokenizer_of(run: OpenedRun) -> Tokenizer | None:
    """Returns the tokenizer of the run's data, of its origin, or of another library's folder; None without one.

    Raises TokenizerError where one is there and can't be read, UsageError where the model has no room for its ids.
    """
    file = tokenizer_file(run.directory)
    if file is None:
        return None
    tokenizer = load_tokenizer(file)
    rows = _rows_of(run.composition.config.model)
    if rows is not None and tokenizer.vocab_size > rows:
        message = (
            f"the tokenizer {file} has {tokenizer.vocab_size} ids, but the model has rows for {rows}: they don't "
            "belong together; put the model's own tokenizer there"
        )
        raise UsageError(message)
    return tokenizer


def _rows_of(model: Any) -> int | None:
    """Returns how many ids a model knows; None of one whose config doesn't say."""
    kind = model._target
    if isinstance(kind, type) and issubclass(kind, MakesPictures):
        return kind.made_by(model).vocab_size
    rows: int | None = vars(model).get("vocab_size")
    return rows


def no_tokenizer(run: OpenedRun) -> UsageError:
    """Returns the error of a prompt in text for a run without a tokenizer."""
    folders = (run.directory / ORIGIN, run.directory)
    place = next((folder for folder in folders if other_tokenizers(folder)), run.directory)
    return UsageError(f"{unreadable(place)}; or give --prompt-ids 1,2,3 instead of --prompt")
