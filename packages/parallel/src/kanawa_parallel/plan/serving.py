"""The step that serving repeats: one token for each of many sequences, their caches in place."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.rules import Rules
from kanawa.arrays.shardings import abstract_params, array_sharding
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Config
from kanawa.contracts import Environment, Program, Sequences
from kanawa.errors import UsageError
from kanawa.module import param_specs

DECODE = "decode_step"


def decode_program(config: Config, environment: Environment) -> Program:
    """Returns the decoding step of `config.model`: `batch_size` sequences of up to `data.sequence_length` tokens.

    Parameters and caches are in the compute dtype, laid out as the plan's rules say; caches are donated.
    """
    if not {"model", "batch_size", "data"} <= set(config.fields()):
        message = "--serve needs an experiment with model, batch_size and data.sequence_length, which size the caches"
        raise UsageError(message)
    model = config.model.build()
    plan, mesh = environment.plan, environment.mesh
    rows, length, dtype = config.batch_size, config.data.sequence_length, plan.precision.compute
    params = abstract_params(param_specs(model), plan.param_rules, mesh)
    params = jax.tree.map(lambda leaf: _cast(leaf, dtype), params)
    caches = jax.tree.map(
        lambda spec: _placed(spec.shape, spec.axes, spec.dtype, plan.activation_rules, mesh, "cache"),
        model.cache_spec(rows, length, dtype),
        is_leaf=lambda node: isinstance(node, ParamSpec),
    )
    ids = _placed((rows, 1), ("batch", "length"), "int32", plan.activation_rules, mesh, "batch_size")
    lengths = jax.ShapeDtypeStruct((), jnp.int32)

    def decode_step(params: Any, caches: Any, ids: jax.Array, lengths: jax.Array) -> tuple[Any, Any, Any]:
        """Returns each sequence's likeliest next token, the caches with it, and the kernels that were used."""
        weights = model.unstacked(params)
        call = kn.functional(model, method="decode")
        (logits, extended), outputs = call(weights, {}, ids, Sequences(lengths=lengths), caches)
        return jnp.argmax(logits[:, -1], -1).astype(jnp.int32), extended, outputs

    shardings = None
    if mesh is not None:
        shardings = (None, jax.tree.map(lambda leaf: leaf.sharding, caches), None)
    return Program(DECODE, decode_step, (params, caches, ids, lengths), (1,), shardings, environment)


def _cast(leaf: jax.ShapeDtypeStruct, dtype: str) -> jax.ShapeDtypeStruct:
    kept = not jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if kept else jnp.dtype(dtype), sharding=leaf.sharding)


def _placed(shape: tuple[int, ...], axes: Any, dtype: str, rules: Rules, mesh: Any, what: str) -> Any:
    sharding = None if mesh is None else array_sharding(shape, axes, rules, mesh, what)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
