"""Choosing the next token from logits: greedy, temperature, top-k, top-p; seeded per row and position."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from kanawa.config import Config, NonNegative, Range, Seed, Size


class SamplingConfig(Config):
    """`temperature` 0 is greedy; `top_k` and `top_p` (None: off) cut the tail before drawing."""

    temperature: NonNegative = 0.8
    top_k: Size | None = None
    top_p: Annotated[float, Range(0, 1, above=True)] | None = None
    seed: Seed = 0


class Sampling(NamedTuple):
    """The settings as a hashable value, part of the compiled program."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    @classmethod
    def of(cls, cfg: SamplingConfig) -> "Sampling":
        """Returns the checked settings of a config."""
        cfg = cfg.clone().freeze()
        return cls(cfg.temperature, cfg.top_k, cfg.top_p, cfg.seed)


def sample(
    logits: Float[Array, "B V"], sampling: Sampling, row_keys: Array, position: Int[Array, ""]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Returns the chosen ids, int32, and their log-probabilities under the uncut distribution, fp32.

    A row's draw depends on its own key and the position only, never on who shares the batch.
    """
    logits = logits.astype(jnp.float32)
    # Static, so a greedy program holds no random numbers.
    if sampling.temperature == 0:
        ids = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    else:
        cut = _cut(logits / sampling.temperature, sampling)
        keys = jax.vmap(lambda key: jax.random.fold_in(key, position))(row_keys)
        ids = jax.vmap(jax.random.categorical)(keys, cut).astype(jnp.int32)
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    return ids, chosen - jax.nn.logsumexp(logits, axis=-1)


def _cut(logits: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """Returns logits with everything outside of top-k and the top-p nucleus at minus infinity."""
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        # Ties with the k-th all stay: dropping some would depend on their order in the vocabulary.
        smallest = jax.lax.top_k(logits, sampling.top_k)[0][:, -1:]
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered = jnp.sort(logits, axis=-1)[:, ::-1]
        mass = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1)
        # The smallest set whose mass reaches top_p; the first token is always in it.
        inside = jnp.concatenate([jnp.ones_like(mass[:, :1], bool), mass[:, :-1] < sampling.top_p], -1)
        smallest = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    return logits
