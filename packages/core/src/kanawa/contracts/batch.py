"""The training batch every language-model workload consumes."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num


class Batch(NamedTuple):
    """Token rows; a row may hold several packed segments. Also valid with numpy arrays or specs as leaves.

    `target_ids` are already shifted: position t predicts `target_ids[t]`. `segment_ids` count from 1 and 0 is
    padding. `positions` restart at 0 in each segment; both are None where each row is one segment. `loss_weights`
    is 0 where nothing is to be predicted. `sources` is 1 in the column of the source that a row comes from; None where
    the data have one source.
    """

    input_ids: Int[Array, "batch length"]
    target_ids: Int[Array, "batch length"]
    positions: Int[Array, "batch length"] | None
    segment_ids: Int[Array, "batch length"] | None
    loss_weights: Float[Array, "batch length"]
    sources: Float[Array, "batch sources"] | None = None

    @classmethod
    def of_tokens(cls, tokens: Int[Array, "batch length_plus_one"]) -> "Batch":
        """Returns the batch of unpacked rows: every position predicts the next token with weight 1."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        return cls(inputs, targets, None, None, jnp.ones(targets.shape, jnp.float32))


DRAWN_ACCURACY = "drawn_accuracy"


class DrawnTargets(Batch):
    """A Batch whose loss draws its own targets from the model's distribution instead, to measure curvature.

    A loss that does so records the metric `DRAWN_ACCURACY`: how often it drew the true target.
    """

    __slots__ = ()


#: Logical axes of each field, in the legend of `kanawa.arrays.axes`.
BATCH_AXES: Any = Batch._make([("batch", "length")] * 5 + [("batch", None)])

#: A model's loss records a Mean called so for each column of `sources`, the column's number behind it.
SOURCE_LOSS = "loss_of_source_"


class RolloutBatch(NamedTuple):
    """Rows that a policy wrote itself, to be reinforced or not. Fields mean what they mean in Batch, and beside them:

    `loss_weights` are 1 where the policy drew the target, 0 elsewhere: in the prompt, and after the end.
    `advantages` say by how much a drawn token did better than expected. `sampled_logprobs` are those under which it was
    drawn, `old_logprobs` what the trainer made of them before any update on these rows (None: this is the first), and
    `reference_logprobs` those of a policy to stay near to (None: of none). `draw_keys` are keys of the noise that drew
    the targets (`kanawa.arrays.draws`), for a step whose log-probabilities equal the sampled ones bit for bit.
    Where rollouts are packed, several in a row of all other fields, `places` [rollouts, length] are the places of each
    rollout's tokens in those rows, counted through them, and -1 after its end.
    """

    input_ids: Int[Array, "batch length"]
    target_ids: Int[Array, "batch length"]
    positions: Int[Array, "batch length"]
    segment_ids: Int[Array, "batch length"]
    loss_weights: Float[Array, "batch length"]
    advantages: Float[Array, "batch length"]
    sampled_logprobs: Float[Array, "batch length"]
    old_logprobs: Float[Array, "batch length"] | None = None
    reference_logprobs: Float[Array, "batch length"] | None = None
    draw_keys: Int[Array, "batch length"] | None = None
    places: Int[Array, "rollouts row_length"] | None = None


class PreferenceBatch(NamedTuple):
    """Rows of whole pairs of packed segments, to be compared. Fields mean what they mean in Batch, and beside them:

    Pair k of a row, from 0, is its segments 2k + 1 and 2k + 2, and `loss_weights` are 1 where a completion is to be
    predicted. `labels` are 1 where the first segment of a pair is the better one, and 0 where the row has no pair k.
    Where single completions are judged, the first segment is the one judged, good (1) or bad (-1), and the second is
    its prompt with another prompt's completion; first segments are in the first half of a row, and second ones in the
    other. `reference_logprobs` are the sums of the weighted log-probabilities of
    each segment by the reference policy, segment s at s - 1 (None: the loss asks a reference of its own). `sources` as
    in Batch.
    """

    input_ids: Int[Array, "batch length"]
    target_ids: Int[Array, "batch length"]
    positions: Int[Array, "batch length"]
    segment_ids: Int[Array, "batch length"]
    loss_weights: Float[Array, "batch length"]
    labels: Float[Array, "batch pairs"]
    reference_logprobs: Float[Array, "batch two_pairs"] | None = None
    sources: Float[Array, "batch sources"] | None = None


class EncoderDecoderBatch(NamedTuple):
    """Rows of pairs: what is read, and what is written after it. Fields mean what they mean in Batch.

    `input_ids` and `segment_ids` are the encoder's. `decoder_input_ids` are the targets moved right by one; the
    decoder sees the input tokens of its own segment.
    """

    input_ids: Int[Array, "batch length"]
    segment_ids: Int[Array, "batch length"] | None
    positions: Int[Array, "batch length"] | None
    decoder_input_ids: Int[Array, "batch target_length"]
    decoder_segment_ids: Int[Array, "batch target_length"] | None
    decoder_positions: Int[Array, "batch target_length"] | None
    target_ids: Int[Array, "batch target_length"]
    loss_weights: Float[Array, "batch target_length"]


class ImageBatch(NamedTuple):
    """Images, channels last, each with the id of its class; weight 0 is padding.

    Integers are pixels, 0 to 255, which the model normalises; floats are normalised already. With `grids` each picture
    has its own proportions: the first rows * columns patches of its array, rows of them one after another, are its own,
    those of a picture of `grids` (rows, columns) patches, and the rest is padding.
    """

    images: Num[Array, "batch height width channels"]
    target_ids: Int[Array, " batch"]
    loss_weights: Float[Array, " batch"]
    grids: Int[Array, "batch 2"] | None = None


class ImageTextBatch(NamedTuple):
    """Pairs: images as in ImageBatch, each with the ids of its text; weight 0 is padding.

    `segment_ids` are 1 for text and 0 for padding after it. For zero-shot evaluation: `label_ids` are the ids of each
    label's text, the same in every row, and `target_ids` the place of the image's label in them, -1 of none.
    """

    images: Num[Array, "batch height width channels"]
    input_ids: Int[Array, "batch length"]
    segment_ids: Int[Array, "batch length"]
    loss_weights: Float[Array, " batch"]
    target_ids: Int[Array, " batch"] | None = None
    label_ids: Int[Array, "batch labels length"] | None = None


class TextLatentsBatch(NamedTuple):
    """Latents of pictures or videos, each with what encoders made of its text: precomputed; weight 0 is padding.

    Latents are floats, scaled as the model takes them, channels last; `pooled` is one vector a text, where read.
    """

    images: Float[Array, "batch *places channels"]
    states: Float[Array, "batch length text_embed"]
    pooled: Float[Array, "batch pooled_embed"] | None
    loss_weights: Float[Array, " batch"]


class ImageChatBatch(NamedTuple):
    """Rows of tokens with pictures, to be predicted as in Batch, whose fields these are beside `images`.

    A row's pictures come in the order of their tokens, of which each has as many as the model says; those past a row's
    last one are zeros. Pixels as in ImageBatch.
    """

    images: Num[Array, "batch pictures height width channels"]
    input_ids: Int[Array, "batch length"]
    target_ids: Int[Array, "batch length"]
    positions: Int[Array, "batch length"] | None
    segment_ids: Int[Array, "batch length"] | None
    loss_weights: Float[Array, "batch length"]
    sources: Float[Array, "batch sources"] | None = None


class SpeechBatch(NamedTuple):
    """Speech, one channel from -1 to 1 at the source's rate, with the ids of what was said; no samples are padding.

    Samples past `audio_lengths` are padding, too. `loss_weights` are 1 for a row's targets, which come first, and 0
    past them. Ids don't hold what a model adds to them: blanks, a prompt, an end.
    """

    audio: Float[Array, "batch samples"]
    audio_lengths: Int[Array, " batch"]
    target_ids: Int[Array, "batch target_length"]
    loss_weights: Float[Array, "batch target_length"]


ENCODER_DECODER_BATCH_AXES: Any = EncoderDecoderBatch._make([("batch", "length")] * 8)
IMAGE_BATCH_AXES: Any = ImageBatch._make([("batch", None, None, None), ("batch",), ("batch",), ("batch", None)])
IMAGE_TEXT_BATCH_AXES: Any = ImageTextBatch._make(
    [
        ("batch", None, None, None),
        ("batch", "length"),
        ("batch", "length"),
        ("batch",),
        ("batch",),
        ("batch", None, None),
    ]
)
SPEECH_BATCH_AXES: Any = SpeechBatch._make([("batch", None), ("batch",), ("batch", "length"), ("batch", "length")])
IMAGE_CHAT_BATCH_AXES: Any = ImageChatBatch._make([("batch", None, None, None, None), *BATCH_AXES])
