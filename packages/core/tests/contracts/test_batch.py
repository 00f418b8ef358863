"""Records of batches: made of tokens, with one tuple of axes for each array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa.arrays.axes import AXES
from kanawa.contracts import (
    BATCH_AXES,
    ENCODER_DECODER_BATCH_AXES,
    IMAGE_BATCH_AXES,
    IMAGE_CHAT_BATCH_AXES,
    IMAGE_TEXT_BATCH_AXES,
    SPEECH_BATCH_AXES,
    Batch,
    EncoderDecoderBatch,
    ImageBatch,
    ImageChatBatch,
    ImageTextBatch,
    SpeechBatch,
)


@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 5))
def test_tokens_become_inputs_and_the_targets_one_later(rows, length, seed):
    tokens = np.random.default_rng(seed).integers(0, 99, (rows, length + 1)).astype(np.int32)
    batch = Batch.of_tokens(jnp.asarray(tokens))
    assert np.array_equal(batch.input_ids, tokens[:, :-1])
    assert np.array_equal(batch.target_ids, tokens[:, 1:])
    assert np.array_equal(batch.input_ids[:, 1:], batch.target_ids[:, :-1])
    assert batch.positions is None
    assert batch.segment_ids is None
    assert batch.loss_weights.shape == (rows, length)
    assert float(batch.loss_weights.sum()) == rows * length


@pytest.mark.parametrize(
    ("record", "axes"),
    [
        (Batch, BATCH_AXES),
        (EncoderDecoderBatch, ENCODER_DECODER_BATCH_AXES),
        (ImageBatch, IMAGE_BATCH_AXES),
        (ImageChatBatch, IMAGE_CHAT_BATCH_AXES),
        (ImageTextBatch, IMAGE_TEXT_BATCH_AXES),
        (SpeechBatch, SPEECH_BATCH_AXES),
    ],
)
def test_every_field_has_axes_of_the_legend(record, axes):
    assert isinstance(axes, record)
    for field, names in zip(record._fields, axes, strict=True):
        assert names[0] == "batch", field
        assert all(name is None or name in AXES for name in names)


def test_axes_have_the_rank_of_their_arrays():
    batch = Batch.of_tokens(jnp.zeros((2, 5), jnp.int32))
    for array, names in zip(batch, BATCH_AXES, strict=True):
        assert array is None or array.ndim == len(names)
    images = ImageBatch(np.zeros((2, 4, 4, 3)), np.zeros(2), np.ones(2), np.ones((2, 2)))
    assert [x.ndim for x in images] == [len(names) for names in IMAGE_BATCH_AXES]


def test_a_batch_is_a_tree_in_which_absent_facts_have_no_leaf():
    batch = Batch.of_tokens(jnp.zeros((2, 5), jnp.int32))
    assert len(jax.tree.leaves(batch)) == 3
    specs = jax.eval_shape(lambda b: b, batch)
    assert isinstance(specs, Batch)
    assert specs.input_ids.shape == (2, 4)
