"""RUN/tokenizer.json: the tokenizer that a run's data was read with, as its config and what it learned."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.config import Config, from_json, to_json
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_bytes, parsed_json

#: Where an imported run keeps what the folder it came from wants back.
ORIGIN = "origin"
#: The file's name in runs and in Hugging Face folders.
TOKENIZER = "tokenizer.json"
#: The files that belong to a Hugging Face folder's.
GENERATION = "generation_config.json"
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", GENERATION)
#: SentencePiece's models, which are read where there is no tokenizer.json.
SENTENCEPIECE = ("tokenizer.model", "spiece.model")
CHAT_TEMPLATE = "chat_template.jinja"
#: The largest, of a quarter of a million tokens and half a million merges, take 34 MB.
MOST_TOKENIZER_BYTES = 128 * 2**20
_FORMAT = "kanawa-tokenizer-1"


class TokenizerError(UsageError):
    """A tokenizer is untrained, its file is damaged, or an id is outside its vocabulary."""


def tokenizer_file(directory: Path) -> Path | None:
    """Returns the file of the tokenizer that the model of a run or of another library's folder was trained with."""
    files = (folder / name for folder in (directory, directory / ORIGIN) for name in (TOKENIZER, *SENTENCEPIECE))
    return next((file for file in files if os.path.lexists(file)), None)


def tokenizer_bytes(config: Config, state: Mapping[str, Any]) -> bytes:
    """Returns a tokenizer's config and what it learned as JSON text that `tokenizer_from_bytes` reads."""
    content = {"format": _FORMAT, "config": to_json(config), "state": state}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def tokenizer_from_bytes(content: bytes) -> Any:
    """Returns the tokenizer that `tokenizer_bytes` wrote; raises ValueError for any other content."""
    record = parsed_json(content)
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        message = f"expected format {_FORMAT!r}, found {found!r}"
        raise ValueError(message)
    return from_json(record["config"]).build(state=record["state"])


def exported_tokenizer(folder: Path) -> dict[str, Path | bytes]:
    """Returns the files of a run's tokenizer as other libraries read them, by name; {} for a run without one.

    Raises TokenizerError that names the file.
    """
    file = folder / TOKENIZER
    if not os.path.lexists(file):
        return {}
    with tokenizer_errors(file):
        content = guarded_bytes(file, folder, most=MOST_TOKENIZER_BYTES)
        if is_foreign(content):
            return {name: folder / name for name in (TOKENIZER, *SETTINGS, CHAT_TEMPLATE) if (folder / name).is_file()}
        tokenizer = tokenizer_from_bytes(content)
        files: dict[str, Path | bytes] = with_stop_ids(tokenizer.folder_files(), tokenizer.stop_ids)
        return files


def with_stop_ids(files: Mapping[str, bytes], stops: Sequence[int]) -> dict[str, Any]:
    """Returns a tokenizer's files by name, where `generation_config.json` names all that stops an answer.

    The folder may have said it in config.json alone, which a run writes anew, or by the name of its end token;
    transformers' `generate` reads neither from an export, and would write on.
    """
    generation = parsed_json(files.get(GENERATION, b"{}"))
    named = generation.get("eos_token_id")
    known = named if isinstance(named, list) else [] if named is None else [named]
    if set(stops) <= set(known):
        return dict(files)
    made = {**generation, "eos_token_id": sorted({*known, *stops})}
    return {**files, GENERATION: json.dumps(made, indent=1).encode()}


def is_foreign(content: bytes) -> bool:
    """Returns whether a tokenizer's file was written by Hugging Face's library; raises ValueError if it isn't JSON."""
    record = parsed_json(content)
    return isinstance(record, dict) and "model" in record


@contextlib.contextmanager
def tokenizer_errors(file: Path) -> Iterator[None]:
    """Turns whatever reading a tokenizer's file raises into a TokenizerError that names the file."""
    try:
        yield
    except OSError as error:
        message = (
            f"can't read the tokenizer {file}: {error.strerror or error}; a run keeps its own: "
            "--set data.tokenizer_file=RUN/tokenizer.json"
        )
        raise TokenizerError(message) from error
    except UnreadableFileError as error:
        raise TokenizerError(str(error)) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        message = f"{file} isn't a saved tokenizer: {reason}"
        raise TokenizerError(message) from error
