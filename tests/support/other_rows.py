"""Data sources whose rows are no rows of tokens: images of a class, and texts to copy from one side to the other."""

import numpy as np
from kanawa.contracts import DataSource, EncoderDecoderBatch, ImageBatch, RowField


class Images(DataSource):
    """Noise whose class is its brightest channel."""

    batch = ImageBatch

    class Config(DataSource.Config):
        size: int = 16
        rows: int | None = None

    @property
    def fields(self):
        size = self.config.size
        images = RowField((size, size, 3), "float32", (None, None, None))
        return {"images": images, "target_ids": RowField((), "int32", ()), "loss_weights": RowField((), "float32", ())}

    @property
    def num_rows(self):
        return self.config.rows

    @property
    def digest(self):
        return f"images-{self.config.size}-{self.config.seed}"

    def row(self, index):
        rng = np.random.default_rng((self.config.seed, index))
        images = rng.normal(size=(self.config.size, self.config.size, 3)).astype(np.float32)
        images[..., index % 3] += 2
        return {"images": images, "target_ids": np.int32(index % 3), "loss_weights": np.float32(1)}

    def held_out(self):
        return self.config.clone().set(rows=10, seed=99).build()


class Copies(DataSource):
    """Tokens that the decoder is to write again."""

    batch = EncoderDecoderBatch

    class Config(DataSource.Config):
        vocab_size: int = 32
        rows: int | None = None

    @property
    def fields(self):
        ids, weights = (RowField((self.config.sequence_length,), dtype, ("length",)) for dtype in ("int32", "float32"))
        absent = ("segment_ids", "positions", "decoder_segment_ids", "decoder_positions")
        held = {name: None if name in absent else ids for name in EncoderDecoderBatch._fields}
        return held | {"loss_weights": weights}

    @property
    def vocab_size(self):
        return self.config.vocab_size

    @property
    def num_rows(self):
        return self.config.rows

    @property
    def digest(self):
        return f"copies-{self.config.vocab_size}-{self.config.sequence_length}-{self.config.seed}"

    def row(self, index):
        rng = np.random.default_rng((self.config.seed, index))
        ids = rng.integers(2, self.config.vocab_size, self.config.sequence_length).astype(np.int32)
        shifted = np.concatenate([np.zeros(1, np.int32), ids[:-1]])
        weights = np.ones(ids.shape, np.float32)
        return {"input_ids": ids, "decoder_input_ids": shifted, "target_ids": ids, "loss_weights": weights}

    def held_out(self):
        return self.config.clone().set(rows=10, seed=99).build()
