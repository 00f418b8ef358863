"""The rows of a step as one int32 array, so that a step costs one copy to the device.

Columns: the progress of the row's sequence, its sampling (floats by their bits), its stop tokens, its pages.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

#: Stop tokens that the device checks; further ones are checked on the host, which sees tokens a step later.
MAX_STOPS = 8

SLOT, LENGTH, NUM_TOKENS, GENERATED, TOP_K, MIN_TOKENS, HAS_TABLES, ADAPTER, SHIFT = range(9)
TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION, UNIFORM = range(9, 16)
STOPS = slice(16, 16 + MAX_STOPS)
PAGES = 16 + MAX_STOPS

#: What a batch needs besides the likeliest tokens, as bits of one number; each is computed only if a row needs it.
TABLES, RANDOM, CUT, LOGPROBS, MASK = (1 << bit for bit in range(5))


class Rows(NamedTuple):
    """The columns of a batch of rows.

    `num_tokens` is how many tokens a row feeds (prefill), or may gain at most (decode); 0 for no sequence.
    `generated` counts its new tokens so far. `has_tables` says that its slot has penalties or biases, `adapter` is its
    LoRA slot, `shift` the difference between its new tokens' coordinates and places. `uniform` is the random number
    that draws its next token.
    """

    slot: Int[Array, " B"]
    length: Int[Array, " B"]
    num_tokens: Int[Array, " B"]
    generated: Int[Array, " B"]
    top_k: Int[Array, " B"]
    min_tokens: Int[Array, " B"]
    has_tables: Int[Array, " B"]
    adapter: Int[Array, " B"]
    shift: Int[Array, " B"]
    temperature: Float[Array, " B"]
    top_p: Float[Array, " B"]
    min_p: Float[Array, " B"]
    presence: Float[Array, " B"]
    frequency: Float[Array, " B"]
    repetition: Float[Array, " B"]
    uniform: Float[Array, " B"]
    stops: Int[Array, "B stops"]
    pages: Int[Array, "B W"]


def unpacked(packed: Int[Array, "B columns"]) -> Rows:
    """Returns the columns of packed rows."""
    floats = jax.lax.bitcast_convert_type(packed[:, TEMPERATURE : UNIFORM + 1], jnp.float32)
    columns = [packed[:, column] for column in range(SHIFT + 1)]
    columns += [floats[:, column] for column in range(UNIFORM - TEMPERATURE + 1)]
    return Rows._make([*columns, packed[:, STOPS], packed[:, PAGES:]])


def float_bits(values: tuple[float, ...]) -> np.ndarray:
    """Returns floats as the int32 numbers of the same bits."""
    return np.asarray(values, np.float32).view(np.int32)
