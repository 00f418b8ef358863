"""Prompts that end in a space, which belongs to the next token: it is removed, and the first new token begins with it.

A byte-pair tokenizer writes "def name" as "def", " name". After "def", " " the model has hardly any examples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class HealedPrompt(NamedTuple):
    """Ids to prefill, and the removed blanks: the first new token must begin with them."""

    ids: list[int]
    blanks: bytes


def heal(tokenizer: Tokenizer, text: str) -> HealedPrompt:
    """Returns the prompt's ids with what its tokenizer begins with, without a last token of blanks alone.

    An empty prompt is the beginning of a document.
    """
    encoded = tokenizer.encode(text).tolist()
    prefix = list(tokenizer.prefix_ids) if encoded else [tokenizer.bos_id]
    ids = prefix + encoded
    last = tokenizer.tokens[ids[-1]]
    if len(encoded) > 1 and last and not last.strip(b" \t"):
        return HealedPrompt(ids[:-1], last)
    return HealedPrompt(ids, b"")


def first_tokens(tokenizer: Tokenizer, prompts: Sequence[HealedPrompt]) -> np.ndarray | None:
    """Returns bool [prompts, tokenizer's vocab]: tokens that begin with each prompt's blanks; None if there are none.

    Blanks that no token begins with restrict nothing.
    """
    if not any(prompt.blanks for prompt in prompts):
        return None
    allowed = np.array([[token.startswith(p.blanks) for token in tokenizer.tokens] for p in prompts])
    return allowed | ~allowed.any(1, keepdims=True)
