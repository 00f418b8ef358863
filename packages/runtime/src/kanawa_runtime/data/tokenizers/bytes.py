"""The tokenizer without a vocabulary: a token is a byte."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kanawa_runtime.data.tokenizers.byte_alphabet import BASE_TOKENS, BOS_ID, EOS_ID, PAD_ID, SPECIAL
from kanawa_runtime.data.tokenizers.export import byte_pieces, folder_files
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer, as_bytes


class ByteTokenizer(Tokenizer):
    """256 bytes and three special ids."""

    pad_id, bos_id, eos_id = PAD_ID, BOS_ID, EOS_ID

    def __init__(self, cfg: Tokenizer.Config, state: dict[str, Any] | None = None) -> None:
        super().__init__(cfg)
        del state

    @property
    def vocab_size(self) -> int:
        """259."""
        return len(BASE_TOKENS)

    @property
    def tokens(self) -> Sequence[bytes]:
        """The 256 single bytes, then empty special tokens."""
        return BASE_TOKENS

    @property
    def special_names(self) -> Mapping[int, str]:
        """Its three."""
        return SPECIAL

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns the bytes of `text` as int32."""
        return np.frombuffer(as_bytes(text), np.uint8).astype(np.int32)

    def folder_files(self) -> dict[str, bytes]:
        """Returns a `tokenizer.json` without merges, and its settings."""
        return folder_files(self.tokens, [], byte_pieces())

    def state(self) -> dict[str, Any]:
        """Returns nothing: nothing is learned."""
        return {}
