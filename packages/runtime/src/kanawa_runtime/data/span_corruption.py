"""Rows for encoder-decoders: spans of another source's tokens are taken out of the input, and are what is written."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from kanawa.config import Count, Fraction, Positive, Size
from kanawa.contracts import EncoderDecoderBatch, RowField, Shown
from kanawa.contracts.data import Tokenizer

from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.permutation import permutation
from kanawa_runtime.data.rows_of_source import RowsOfSource

#: T5's; as many spans a row has at most.
NUM_SENTINELS = 100


class Corruption(NamedTuple):
    """How many tokens of a row are taken out, in how many spans."""

    noise: int
    spans: int


class SpanCorruption(RowsOfSource):
    """T5's objective (Raffel et al. 2020, arXiv:1910.10683, section 3.1.4) on rows of text.

    The encoder reads a row with each span replaced by a sentinel; the decoder writes each sentinel and its span. Both
    end with the tokenizer's end. Rows of the source are as long as fills `sequence_length` ids of the encoder.
    Sentinels are those of the tokenizer, `<extra_id_0>` and so on, else new ids past its own, the first the largest.
    """

    batch = EncoderDecoderBatch
    packed = False

    class Config(RowsOfSource.Config):
        #: Of the tokens of a row, and the mean length of a span.
        share: Fraction = 0.15
        mean_span: Positive = 3.0
        num_sentinels: Size = NUM_SENTINELS
        #: What the decoder begins with; None is the tokenizer's padding.
        start_id: Count | None = None

        def check(self) -> list[str]:
            """Returns what is wrong with the share."""
            return [] if 0.0 < self.share < 1.0 else [f"share is {self.share}, expected a number between 0 and 1"]

    def corruption(self, tokens: int) -> Corruption:
        """Returns what is taken out of a row of so many tokens, two at least."""
        cfg = self.config
        noise = min(max(round(tokens * cfg.share), 1), tokens - 1)
        spans = max(round(noise / cfg.mean_span), 1)
        return Corruption(noise, min(spans, noise, tokens - noise, cfg.num_sentinels))

    @functools.cached_property
    def source_length(self) -> int:
        """The longest row whose corrupted input fits."""

        def length(tokens: int) -> int:
            noise, spans = self.corruption(tokens)
            return tokens - noise + spans + 1

        tokens: int = self.config.sequence_length
        if tokens < 4:
            message = f"data.sequence_length is {tokens}, expected 4 or more for a span, a sentinel and an end"
            raise RowError(message)
        while length(tokens) > self.config.sequence_length:
            tokens -= 1
        while length(tokens + 1) <= self.config.sequence_length:
            tokens += 1
        return tokens

    @property
    def target_length(self) -> int:
        """The ids that the decoder writes of a full row."""
        return sum(self.corruption(self.source_length)) + 1

    @property
    def fields(self) -> Mapping[str, RowField | None]:
        """Ids and segments of both sides, segment 1 and padding; targets and their weights."""
        return encoder_decoder_fields(self.config.sequence_length, self.target_length)

    @property
    def source_names(self) -> tuple[str, ...]:
        """None: the record has no place for them."""
        return ()

    @functools.cached_property
    def sentinels(self) -> np.ndarray:
        """The ids of the sentinels in order."""
        tokenizer: Any = self.tokenizer
        names = {} if tokenizer is None else {name: i for i, name in tokenizer.special_names.items()}
        own = [names[name] for n in range(self.config.num_sentinels) if (name := f"<extra_id_{n}>") in names]
        if len(own) == self.config.num_sentinels:
            return np.asarray(own, np.int32)
        return np.arange(self.vocab_size - 1, self._source.vocab_size - 1, -1, dtype=np.int32)

    @functools.cached_property
    def vocab_size(self) -> int:
        """The source's, with room for sentinels where the tokenizer has none."""
        tokenizer: Any = self.tokenizer
        has_own = tokenizer is not None and "<extra_id_0>" in tokenizer.special_names.values()
        return self._source.vocab_size + (0 if has_own else self.config.num_sentinels)

    @property
    def settings(self) -> Any:
        """Those of the config, and the ids that are added."""
        return [self.sentinels.tolist(), *_ends(self.tokenizer), super().settings]

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Returns row `index`; the same spans of it are taken out each time."""
        source = self._source.row(index)
        tokens = source["input_ids"][source["segment_ids"] > 0]
        pad, end = _ends(self.tokenizer)
        start = pad if self.config.start_id is None else self.config.start_id
        lengths = self.config.sequence_length, self.target_length
        if len(tokens) < 2:
            return encoder_decoder_row(np.zeros(0, np.int32), np.zeros(0, np.int32), start, pad, lengths)
        noise, spans = self.corruption(len(tokens))
        # What stays and what is taken out alternate, and each part has a token at least.
        counts = enumerate((len(tokens) - noise, noise))
        kept, taken = (self._parts(count, spans, index, draw) for draw, count in counts)
        edges = np.cumsum(np.stack([kept, taken], axis=1).ravel())
        pieces = np.split(tokens, edges[:-1])
        sides: list[list[np.ndarray]] = [[], []]
        for number in range(spans):
            sentinel = self.sentinels[number : number + 1]
            sides[0] += [pieces[2 * number], sentinel]
            sides[1] += [sentinel, pieces[2 * number + 1]]
        read, written = (np.concatenate([*side, [end]]).astype(np.int32) for side in sides)
        return encoder_decoder_row(read, written, start, pad, lengths)

    def _parts(self, count: int, parts: int, index: int, draw: int) -> np.ndarray:
        """Returns `parts` lengths of one or more that sum up to `count`, drawn evenly from all such."""
        cuts = np.sort(permutation(count - 1, self.config.seed, index, draw)[: parts - 1]) + 1
        return np.diff(np.concatenate([[0], cuts, [count]]))

    def shown(self, row: Mapping[str, np.ndarray]) -> Shown | None:
        """Returns both sides as text."""
        return None if self.tokenizer is None else shown_pair(self.tokenizer, row, self.sentinels)


def _ends(tokenizer: Tokenizer | None) -> tuple[int, int]:
    """Returns the ids of padding and of the end; those of T5 where rows never were text."""
    own: Any = tokenizer
    return (0, 1) if own is None else (own.pad_id, own.stop_ids[0])


def encoder_decoder_fields(length: int, target_length: int) -> dict[str, RowField | None]:
    """Returns the fields of rows of one pair each."""
    read, written = (RowField((size,), "int32", ("length",)) for size in (length, target_length))
    weights = RowField((target_length,), "float32", ("length",))
    fields = (read, read, None, written, written, None, written, weights)
    return dict(zip(EncoderDecoderBatch._fields, fields, strict=True))


def encoder_decoder_row(
    read: np.ndarray, written: np.ndarray, start: int, pad: int, lengths: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Returns the row of a pair: ids at most as long as `lengths`, padded."""
    ids, targets = (np.full(length, pad, np.int32) for length in lengths)
    ids[: len(read)], targets[: len(written)] = read, written
    is_read, is_written = (np.arange(length) < len(part) for length, part in zip(lengths, (read, written), strict=True))
    return {
        "input_ids": ids,
        "segment_ids": is_read.astype(np.int32),
        "decoder_input_ids": np.where(is_written, np.concatenate([[start], targets[:-1]]), pad).astype(np.int32),
        "decoder_segment_ids": is_written.astype(np.int32),
        "target_ids": targets,
        "loss_weights": is_written.astype(np.float32),
    }


def shown_pair(tokenizer: Any, row: Mapping[str, np.ndarray], sentinels: np.ndarray | None = None) -> Shown:
    """Returns both sides of a row as text; a sentinel is written as its number."""
    numbers = {} if sentinels is None else {int(i): n for n, i in enumerate(sentinels)}
    sides = []
    for name, mask in (("input_ids", "segment_ids"), ("target_ids", "decoder_segment_ids")):
        parts: list[Any] = [[]]
        for token in row[name][row[mask] > 0].tolist():
            parts += [f"<{numbers[token]}>", []] if token in numbers else []
            parts[-1] += [] if token in numbers else [token]
        sides.append("".join(part if isinstance(part, str) else tokenizer.decode(part) for part in parts))
    return Shown(" -> ".join(sides))
