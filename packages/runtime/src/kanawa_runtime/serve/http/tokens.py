"""Ids of texts and texts of ids, as JSON: what `/tokenize` and `/detokenize` answer."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kanawa_runtime.serve.http.exchange import json_bytes

if TYPE_CHECKING:  # it imports JAX, and bodies are read without
    from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TokenTexts:
    """A model's tokenizer, the texts of its special ids, and how long its sequences may be."""

    tokenizer: "Tokenizer"
    special: Mapping[int, str]
    max_length: int

    def tokenized(self, text: str, *, prefix: bool, with_texts: bool) -> bytes:
        """Returns the ids of a text, after those that begin one with `prefix`, and the text of each `with_texts`."""
        encoded = self.tokenizer.encode(text).tolist()
        return self.listed((list(self.tokenizer.prefix_ids) if prefix else []) + encoded, with_texts=with_texts)

    def listed(self, ids: list[int], *, with_texts: bool) -> bytes:
        """Returns ids as JSON, and the text of each `with_texts`."""
        made = {"count": len(ids), "max_model_len": self.max_length, "tokens": ids}
        if with_texts:
            tokens = self.tokenizer.tokens
            # Of pictures a tokenizer may know nothing.
            known = [self.special.get(i) or (tokens[i] if i < len(tokens) else b"") for i in ids]
            made["token_strs"] = [one if isinstance(one, str) else one.decode("utf-8", "replace") for one in known]
        return json_bytes(made)

    def detokenized(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Returns the text of ids; those that a padded model has beyond its tokenizer's vanish."""
        known = np.asarray(ids, np.int64)
        return json_bytes({"prompt": self.tokenizer.decode(known[known < self.tokenizer.vocab_size])})
