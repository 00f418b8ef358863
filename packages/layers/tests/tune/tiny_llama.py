"""A two-layer Llama that tests of tuning change."""

import functools

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition import plain
from kanawa.contracts import Batch
from kanawa_layers.recipes.llama import llama

TOKENS = jnp.array([[(7 * t + 3 * r) % 61 for t in range(13)] for r in range(4)], jnp.int32)


def tiny() -> kn.Config:
    """Returns the config: scanned, grouped heads, untied."""
    return llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=61)


def logits(module, params):
    """Returns logits of TOKENS."""
    return jax.jit(lambda p: kn.functional(module, "predict")(p, {}, TOKENS)[0])(params)


def tuned(module, base):
    """Returns a tuned module's parameters with the plain model's values, in one program."""
    return jax.jit(lambda base, key: plain.from_plain(module, base, key))(base, jax.random.key(5))


def to_plain(module, params):
    """Returns the plain model's parameters, in one program."""
    return jax.jit(lambda params: plain.to_plain(module, params))(params)


def loss(module, params):
    """Returns the training loss of TOKENS; traceable."""
    _, outputs = kn.functional(module)(params, {}, Batch.of_tokens(TOKENS), key=jax.random.key(1), train=True)
    return outputs.total_loss()


def losses_of_ten_steps(module, params, trained=lambda path: True, rate=0.3):
    """Returns the loss before each of ten steps of gradient descent on the parameters whose path is chosen."""
    flat = flatten_paths(params)
    fixed = {path: leaf for path, leaf in flat.items() if not trained(path)}

    @functools.partial(jax.jit, donate_argnums=0)
    def step(own):
        value, grads = jax.value_and_grad(lambda own: loss(module, unflatten_paths({**fixed, **own})))(own)
        return jax.tree.map(lambda p, g: p - rate * g, own, grads), value

    own, actual = {path: jnp.array(leaf) for path, leaf in flat.items() if trained(path)}, []
    for _ in range(10):
        own, value = step(own)
        actual.append(float(value))
    return actual
