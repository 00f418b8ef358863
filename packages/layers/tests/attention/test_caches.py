"""Every attention over every cache gives what the whole row gives, for rows of different lengths cut anywhere."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sashimono as sm
from sashimono.contracts import Sequences

from .kinds import ATTENTIONS, CACHES, NO_RING, WIDTH

ROWS, LENGTH = 3, 16
X = jnp.asarray(np.random.default_rng(0).standard_normal((ROWS, LENGTH, WIDTH)), jnp.float32)
#: Of the first 6 tokens given, so many are real; the rest is padding.
PROMPTS = jnp.array([6, 3, 1])
# Nothing here is compiled as a whole: single operations are shared by all combinations, programs wouldn't be.


@functools.cache
def parameters(kind):
    """Returns parameters, none of them zero or one, and what they make of whole rows."""
    layer = ATTENTIONS[kind].build(name="attention")
    is_spec = lambda spec: isinstance(spec, sm.ParamSpec)  # noqa: E731
    draw = np.random.default_rng(1).standard_normal
    params = jax.tree.map(
        lambda spec: jnp.asarray(0.3 * draw(spec.shape), jnp.float32), sm.param_specs(layer), is_leaf=is_spec
    )
    return params, sm.functional(layer)(params, {}, X, Sequences())[0][0]


def empty(layer, rows, length):
    return {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in layer.cache_spec(rows, length, "float32").items()}


def rows_from(lengths, size):
    return jnp.take_along_axis(X, (lengths[:, None] + jnp.arange(size)[None])[..., None], axis=1)


def decoded(layer, params):
    """Returns outputs of a padded prompt of 6, and of a chunk of 3 and then 3 single tokens after each row's own."""
    step = sm.functional(layer)
    cache = empty(layer, ROWS, LENGTH)
    real = (jnp.arange(6)[None] < PROMPTS[:, None]).astype(jnp.int32)
    start = Sequences(lengths=jnp.zeros((), jnp.int32), segment_ids=real)
    (prompt, cache), _ = step(params, {}, X[:, :6], start, cache)
    (chunk, cache), _ = step(params, {}, rows_from(PROMPTS, 3), Sequences(lengths=PROMPTS), cache)

    outputs, lengths = [chunk], PROMPTS + 3
    for _ in range(3):
        (y, cache), _ = step(params, {}, rows_from(lengths, 1), Sequences(lengths=lengths), cache)
        outputs.append(y)
        lengths = lengths + 1
    return prompt, jnp.concatenate(outputs, axis=1)


#: What is run every day: every attention with a dense cache, and every other cache where masks, biases or the layout
#: of keys could go wrong in it. All the rest is run by night.
DAILY = {
    "ring": {"plain", "window", "chunked", "relative", "sigmoid", "latent"},
    "paged": {"plain", "either", "alibi", "sigmoid", "latent"},
    "quantised": {"plain", "latent"},
    "quantised-ring": {"window"},
    "quantised-paged": {"plain"},
}
COMBINATIONS = [
    pytest.param(kind, cache, marks=() if kind in DAILY.get(cache, ATTENTIONS) else pytest.mark.nightly)
    for kind in ATTENTIONS
    for cache in CACHES
    if not (kind in NO_RING and "ring" in cache)
]


@pytest.mark.parametrize(("kind", "cache"), COMBINATIONS)
def test_cached_equals_whole_rows(kind, cache):
    params, whole = parameters(kind)
    layer = ATTENTIONS[kind].clone().set(cache=CACHES[cache]).build(name="attention")
    prompt, rest = decoded(layer, params)
    tolerance = 0.03 * jnp.abs(whole).max() if "quantised" in cache else 2e-5
    for row, length in enumerate(map(int, PROMPTS)):
        np.testing.assert_allclose(prompt[row, :length], whole[row, :length], atol=tolerance)
        np.testing.assert_allclose(rest[row], whole[row, length : length + 6], atol=tolerance)
