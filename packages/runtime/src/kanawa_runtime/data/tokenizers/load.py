"""Reading a saved tokenizer: one of ours, or the files that Hugging Face models come with."""

import os
from pathlib import Path

from kanawa.guarded_read import guarded_bytes

from kanawa_runtime.data.tokenizers.folder import folder_state, unreadable
from kanawa_runtime.data.tokenizers.huggingface import HuggingFaceTokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.tokenizer_file import (
    MOST_TOKENIZER_BYTES,
    TOKENIZER,
    TokenizerError,
    is_foreign,
    tokenizer_errors,
    tokenizer_from_bytes,
)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Returns the tokenizer saved at `path`, or of a Hugging Face folder or its `tokenizer.json`.

    Raises TokenizerError that names the file.
    """
    path = Path(path)
    file = path / TOKENIZER if path.is_dir() else path
    if path.is_dir() and not os.path.lexists(file):
        raise TokenizerError(unreadable(path))
    with tokenizer_errors(file):
        content = guarded_bytes(file, path if path.is_dir() else None, most=MOST_TOKENIZER_BYTES)
        if is_foreign(content):
            tokenizer: Tokenizer = HuggingFaceTokenizer.Config().build(state=folder_state(file.parent))
        else:
            tokenizer = tokenizer_from_bytes(content)
        return tokenizer
