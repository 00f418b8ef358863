"""How a step's rows travel: one int32 array, a line a row, so that a step costs one copy to the device.

Columns: where the row's sequence stands, how it is sampled (floats by their bits), its stop tokens, its pages.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

#: Stop tokens that the device knows; what is beyond is looked for on the host, which sees them a step later.
MOST_STOPS = 8

SLOT, LENGTH, COUNT, GENERATED, TOP_K, MIN_TOKENS, HAS_TABLES, ADAPTER = range(8)
TEMPERATURE, TOP_P, MIN_P, PRESENCE, FREQUENCY, REPETITION, UNIFORM = range(8, 15)
STOPS = slice(15, 15 + MOST_STOPS)
PAGES = 15 + MOST_STOPS

#: What a batch needs besides the likeliest tokens, as bits of one number; each costs nothing where no row asks for it.
TABLES, RANDOM, CUT, LOGPROBS, MASK = (1 << bit for bit in range(5))


class Rows(NamedTuple):
    """The columns of a batch of rows.

    `count` is how many tokens a row is given (prefill) or may gain at most (decode); 0 for no sequence. `generated`
    counts its new tokens so far. `has_tables` says that its slot's penalties and biases are set, `adapter` is the
    slot of its LoRA. `uniform` is the random number that its next token is drawn by.
    """

    slot: Int[Array, " B"]
    length: Int[Array, " B"]
    count: Int[Array, " B"]
    generated: Int[Array, " B"]
    top_k: Int[Array, " B"]
    min_tokens: Int[Array, " B"]
    has_tables: Int[Array, " B"]
    adapter: Int[Array, " B"]
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
    return Rows(
        *(packed[:, column] for column in (SLOT, LENGTH, COUNT, GENERATED)),
        *(packed[:, column] for column in (TOP_K, MIN_TOKENS, HAS_TABLES, ADAPTER)),
        *(floats[:, column] for column in range(UNIFORM - TEMPERATURE + 1)),
        packed[:, STOPS],
        packed[:, PAGES:],
    )


def float_bits(values: tuple[float, ...]) -> np.ndarray:
    """Returns floats as the int32 numbers of the same bits."""
    return np.asarray(values, np.float32).view(np.int32)
