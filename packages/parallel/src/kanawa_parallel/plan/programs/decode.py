"""The program that serving repeats: one token for each of many sequences, with their caches updated in place."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.rules import Rules
from kanawa.arrays.shardings import abstract_params, array_sharding
from kanawa.arrays.spec import ParamSpec
from kanawa.composition.prepare import Prepared
from kanawa.composition.program_traits import for_purpose
from kanawa.contracts import CausalLM, Program, Sequences
from kanawa.errors import UsageError
from kanawa.module import param_specs

DECODE = "decode_step"
#: The same, as the engine of a run that draws rollouts has its weights.
ROLLOUT_DECODE = "rollout_decode_step"


def engine_rules(param_rules: Rules, activation_rules: Rules) -> Rules:
    """Returns the rules of an engine's weights beside training: as trained, but over no axis that splits the rows.

    Gathering weights at every token would cost more than their memory.
    """
    rows = {axis for name, axes in activation_rules if name in ("batch", "length") for axis in axes}
    return tuple((name, tuple(axis for axis in axes if axis not in rows)) for name, axes in param_rules)


def decode_program(prepared: Prepared, name: str = DECODE) -> Program:
    """Returns the decoding step of the model: as many sequences, and as long, as a training batch has rows.

    Parameters and caches are in the compute dtype, laid out as the plan's rules say; caches are donated. Raises
    UsageError where the model doesn't decode, or where nothing says how large the caches are.
    """
    model, environment = prepared.workload.model, for_purpose(prepared.environment, "decode")
    shape = prepared.composition.config.batch_shape()
    if shape is None or not isinstance(model, CausalLM):
        message = (
            f"--serve plans a decoding step, and {prepared.composition.name} is a {type(model).__qualname__} "
            f"{'without rows and positions that size its caches' if shape is None else 'that does not decode'}; "
            "name an experiment with a causal language model, or leave --serve out"
        )
        raise UsageError(message)
    plan, mesh = environment.plan, environment.mesh
    if name == ROLLOUT_DECODE:
        plan = dataclasses.replace(plan, param_rules=engine_rules(plan.param_rules, plan.activation_rules))
        environment = dataclasses.replace(environment, plan=plan)
    rows, length, dtype = shape.rows, shape.length, plan.precision.compute
    params = abstract_params(param_specs(model), plan.param_rules, mesh)
    params = jax.tree.map(lambda leaf: cast_spec(leaf, dtype), params)
    caches = jax.tree.map(
        lambda spec: placed(spec.shape, spec.axes, spec.dtype, plan.activation_rules, mesh, "cache"),
        model.cache_spec(rows, length, dtype),
        is_leaf=lambda node: isinstance(node, ParamSpec),
    )
    ids = placed((rows, 1), ("batch", "length"), "int32", plan.activation_rules, mesh, "batch_size")
    lengths = jax.ShapeDtypeStruct((), jnp.int32)

    def decode_step(params: Any, caches: Any, ids: jax.Array, lengths: jax.Array) -> tuple[Any, Any, Any]:
        """Returns each sequence's likeliest next token, the caches with it, and the kernels that were used."""
        weights = model.unstacked(params)
        call = kn.functional(model, method="decode")
        (logits, extended), outputs = call(weights, {}, ids, Sequences(lengths=lengths), caches)
        return jnp.argmax(logits[:, -1], -1).astype(jnp.int32), extended, outputs

    shardings = None
    if mesh is not None:
        # Caches leave as they entered, or they couldn't take the donated ones' place; the compiler may choose for the
        # rest.
        shardings = (None, jax.tree.map(lambda leaf: leaf.sharding, caches), None)
    return Program(name, decode_step, (params, caches, ids, lengths), (1,), shardings, environment)


def cast_spec(leaf: jax.ShapeDtypeStruct, dtype: str) -> jax.ShapeDtypeStruct:
    """Returns an abstract parameter as serving stores it: floats in `dtype`."""
    # Codes of quantised weights are integers and stay as they are.
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype) if is_float else leaf.dtype, sharding=leaf.sharding)


def placed(shape: tuple[int, ...], axes: Any, dtype: str, rules: Rules, mesh: Any, what: str) -> Any:
    """Returns an abstract activation laid out as the rules say; on one device without a mesh."""
    sharding = None if mesh is None else array_sharding(shape, axes, rules, mesh, what)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
