"""The tokenizer of an opened run."""

from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.folder import other_tokenizers, unreadable
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.runs.run_directory import ORIGIN
from kanawa_runtime.runs.tokenizer_file import tokenizer_file


def tokenizer_of(run: OpenedRun) -> Tokenizer | None:
    """Returns the tokenizer of the run's data, of its origin, or of another library's folder; None without one.

    Raises TokenizerError where one is there and can't be read, UsageError where the model has no room for its ids.
    """
    file = tokenizer_file(run.directory)
    if file is None:
        return None
    tokenizer = load_tokenizer(file)
    rows = run.composition.config.model.vocab_size
    if tokenizer.vocab_size > rows:
        message = (
            f"the tokenizer {file} has {tokenizer.vocab_size} ids, but the model has rows for {rows}: they don't "
            "belong together; put the model's own tokenizer there"
        )
        raise UsageError(message)
    return tokenizer


def no_tokenizer(run: OpenedRun) -> UsageError:
    """Returns the error of a prompt in text for a run without a tokenizer."""
    folders = (run.directory / ORIGIN, run.directory)
    place = next((folder for folder in folders if other_tokenizers(folder)), run.directory)
    return UsageError(f"{unreadable(place)}; or give --prompt-ids 1,2,3 instead of --prompt")
