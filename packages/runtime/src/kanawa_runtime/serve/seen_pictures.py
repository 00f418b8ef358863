"""What a generator's prefill takes besides tokens where prompts have pictures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from kanawa.contracts import CausalLM, ReadsPictures, Sequences
from kanawa.errors import UsageError

from kanawa_runtime.serve.engine.picture import Picture, placed_pictures


class Seen(NamedTuple):
    """`embeddings` of the tokens `is_embedded`; and coordinates where the model has them.

    A token after the prompt is at its place and `shift`, in all streams.
    """

    embeddings: Float[Array, "B T F"]
    is_embedded: Bool[Array, "B T"]
    coordinates: Int[Array, "B T streams"] | None = None
    shift: Int[Array, "B streams"] | None = None

    def put_into(self, sequences: Sequences) -> Sequences:
        """Returns sequences with them."""
        return sequences._replace(
            embeddings=self.embeddings, is_embedded=self.is_embedded, coordinates=self.coordinates
        )


def seen_pictures(
    model: CausalLM,
    params: Any,
    state: Any,
    ids: np.ndarray,
    lengths: Sequence[int],
    pictures: Sequence[Sequence[Picture]],
) -> Seen:
    """Returns what padded prompts [B, T] show of the pictures of each; raises UsageError where they don't fit."""
    if not isinstance(model, ReadsPictures):
        message = f"{type(model).__name__} reads no pictures; leave them out, or take a model that does"
        raise UsageError(message)
    kind, config = type(model), model.config
    tokens, flat = kind.picture_tokens(config), [one for each in pictures for one in each]
    images = np.stack([one.pixels for one in flat]) if flat else np.zeros((1, *tokens.shape), np.uint8)
    if images.shape[1:] != tokens.shape:
        message = f"pictures are {list(images.shape[1:])}, and the model reads {list(tokens.shape)}"
        raise UsageError(message)
    features, _ = jax.jit(kn.functional(model, "encode_pictures"))(params, state, images)
    rows = features.reshape(-1, features.shape[-1])
    place, number = np.full(ids.shape, -1), 0
    for row, own, length, mine in zip(ids, place, lengths, pictures, strict=True):
        for placed in placed_pictures(row[:length].tolist(), mine, tokens.token_id, tokens.num_tokens):
            own[placed.start : placed.stop] = np.arange(tokens.num_tokens) + number * tokens.num_tokens
            number += 1
    seen = Seen(rows[jnp.maximum(place, 0)], jnp.asarray(place >= 0))
    known = [kind.picture_coordinates(config, row[:length]) for row, length in zip(ids, lengths, strict=True)]
    streams = [one.shape[1] for one in known if one is not None]
    if not streams:
        return seen
    coordinates = np.zeros((*ids.shape, streams[0]), np.int32)
    shift = np.zeros((len(ids), streams[0]), np.int32)
    for row, one, own in zip(coordinates, known, shift, strict=True):
        assert one is not None
        row[: len(one)], own[:] = one, one.max() + 1 - len(one)
    return seen._replace(coordinates=jnp.asarray(coordinates), shift=jnp.asarray(shift))
