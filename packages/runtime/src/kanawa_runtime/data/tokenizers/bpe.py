"""Byte-pair encoding that is learned in seconds, so that hello world brings its own vocabulary."""

import functools
import hashlib
import heapq
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from kanawa.config import Size

from kanawa_runtime.data.tokenizers import pretokens
from kanawa_runtime.data.tokenizers.bpe_training import Pair, learn_merges
from kanawa_runtime.data.tokenizers.byte_alphabet import BASE_TOKENS, BOS_ID, EOS_ID, FIRST_LEARNED_ID, PAD_ID, SPECIAL
from kanawa_runtime.data.tokenizers.export import folder_files
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer, as_bytes
from kanawa_runtime.runs.tokenizer_file import TokenizerError

_logger = logging.getLogger(__name__)

#: Distinct pieces remembered while encoding; past it (a corpus of random bytes) pieces are encoded each time.
_CACHE_LIMIT = 500_000


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE over the pieces of `pretokens`: any bytes encode, and decode to themselves."""

    class Config(Tokenizer.Config):
        #: Ids in all: 256 bytes, three special ones, the rest learned.
        vocab_size: Size = 2048
        #: Learn from documents up to this many bytes in all, taken in the order of their hashes.
        sample_bytes: Size = 6_000_000
        #: Pieces rarer than this teach nothing that generalises, and would take most of the time.
        min_piece_count: Size = 4

    pad_id, bos_id, eos_id = PAD_ID, BOS_ID, EOS_ID

    def __init__(self, cfg: "BytePairTokenizer.Config", state: dict[str, Any] | None = None) -> None:
        super().__init__(cfg)
        if cfg.vocab_size <= FIRST_LEARNED_ID:
            message = (
                f"vocab_size={cfg.vocab_size} leaves no room to learn: 256 bytes and 3 special ids come first; "
                "give 1024 to 4096, or use the byte tokenizer"
            )
            raise TokenizerError(message)
        self._merges: list[Pair] | None = None
        if state is not None:
            self._merges = [(int(first), int(second)) for first, second in state["merges"]]
            self._check_merges()

    def _check_merges(self) -> None:
        for index, (first, second) in enumerate(self.merges):
            if not 0 <= min(first, second) <= max(first, second) < FIRST_LEARNED_ID + index:
                message = f"merge {index} is ({first}, {second}), which uses an id that isn't made yet"
                raise ValueError(message)

    @property
    def merges(self) -> list[Pair]:
        """Learned pairs in order; raises TokenizerError before `fit`."""
        if self._merges is None:
            message = "this tokenizer has learned nothing yet: call fit(documents), or load one that was saved"
            raise TokenizerError(message)
        return self._merges

    @property
    def vocab_size(self) -> int:
        """The configured size, even where a small corpus taught fewer merges."""
        return int(self.config.vocab_size)

    @functools.cached_property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of each id, [vocab_size]."""
        tokens = list(BASE_TOKENS)
        for first, second in self.merges:
            tokens.append(tokens[first] + tokens[second])
        return tuple(tokens + [b""] * (self.vocab_size - len(tokens)))

    @property
    def special_names(self) -> Mapping[int, str]:
        """Those of the byte tokenizer."""
        return SPECIAL

    @functools.cached_property
    def _pieces(self) -> "_PieceEncoder":
        return _PieceEncoder(self.merges)

    def fit(self, documents: Iterable[bytes]) -> "BytePairTokenizer":
        """Returns a tokenizer with merges learned from a deterministic sample of `documents`."""
        cfg = self.config
        counts = pretokens.count(_sample(documents, cfg.sample_bytes))
        frequent = {piece: n for piece, n in counts.items() if n >= cfg.min_piece_count}
        wanted = cfg.vocab_size - FIRST_LEARNED_ID
        merges = learn_merges(frequent, wanted, FIRST_LEARNED_ID)
        if len(merges) < wanted:
            _logger.warning("the corpus taught %d of %d merges; the last ids stay unused", len(merges), wanted)
        return type(self)(cfg.clone(), state={"merges": merges})

    def encode(self, text: bytes | str) -> np.ndarray:
        """Returns int32 ids; the same pieces get the same ids wherever they stand."""
        encode = self._pieces.__getitem__
        parts = [
            np.fromiter(chain.from_iterable(map(encode, pieces)), np.int32)
            for pieces in pretokens.split_by_parts(as_bytes(text))
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def folder_files(self, special: Sequence[str] = ()) -> dict[str, bytes]:
        """Returns a `tokenizer.json` that encodes identically, and its settings; see `export.folder_files`."""
        return folder_files(self.tokens, self.merges, pretokens.PRETOKEN, special)

    def state(self) -> dict[str, Any]:
        """Returns the merges in order."""
        return {"merges": [list(pair) for pair in self.merges]}


class _PieceEncoder(dict[bytes, tuple[int, ...]]):
    """Encodes a piece on first sight and remembers it."""

    def __init__(self, merges: Sequence[Pair]) -> None:
        super().__init__()
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}

    def __missing__(self, piece: bytes) -> tuple[int, ...]:
        ids, rank_of = list(piece), self._ranks.get
        unknown = len(self._ranks)
        ranks = [rank_of(pair, unknown) for pair in zip(ids, ids[1:], strict=False)]
        # A pair made by a merge has a later rank, so taking the leftmost lowest one at a time merges every occurrence
        # of it before any other pair, as training did.
        while ranks and (rank := min(ranks)) < unknown:
            place = ranks.index(rank)
            ids[place : place + 2] = [FIRST_LEARNED_ID + rank]
            del ranks[place]
            if place:
                ranks[place - 1] = rank_of((ids[place - 1], ids[place]), unknown)
            if place < len(ranks):
                ranks[place] = rank_of((ids[place], ids[place + 1]), unknown)
        encoded = tuple(ids)
        if len(self) < _CACHE_LIMIT:
            self[piece] = encoded
        return encoded


def _sample(documents: Iterable[bytes], limit_bytes: int) -> list[bytes]:
    """Returns documents by ascending hash up to a limit, whatever their order; holds little more than the limit."""
    chosen: list[tuple[int, bytes]] = []  # a heap, the largest hash first
    total = 0
    for data in documents:
        order = -int.from_bytes(hashlib.sha256(data).digest(), "big")
        # A single huge document is cut, or it alone would break the bound on time.
        heapq.heappush(chosen, (order, data[:limit_bytes]))
        total += min(len(data), limit_bytes)
        while total - len(chosen[0][1]) >= limit_bytes:
            total -= len(heapq.heappop(chosen)[1])
    sample: list[bytes] = []
    room = limit_bytes
    for _, data in sorted(chosen, key=lambda entry: -entry[0]):
        if room <= 0:
            break
        sample.append(data[:room])
        room -= len(data)
    return sample
