"""Weights from the trainer to the engine of a process: on the devices, without a file, resharded for decoding."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from kanawa.arrays.rules import Rules
from kanawa.arrays.shardings import param_shardings, replicated
from kanawa.contracts import CausalLM, Environment
from kanawa.module import param_specs


class Handover:
    """Gives an engine the trainer's weights; `environment` is the engine's: in a gang, this process's devices alone.

    A trainer that shards weights over its rows gathers them once a step of millions of tokens; decoding would at every
    token. So they are split as trained, but not over the axes that split the batch, nor over those that span processes:
    each process has a whole copy, and draws by itself. Experts stay split within a process.
    """

    def __init__(self, model: CausalLM, environment: Environment) -> None:
        self.environment, self._shardings = environment, None
        self._local: Mesh | None = None
        mesh = environment.mesh
        if not isinstance(mesh, Mesh):
            return
        spanning: frozenset[str] = frozenset()
        if jax.process_count() > 1:
            self._local = mesh.local_mesh
            spanning = frozenset(axis for axis, size in mesh.shape.items() if self._local.shape[axis] != size)
            self.environment = dataclasses.replace(environment, mesh=self._local)
        self._shardings = decoding_shardings(model, environment, spanning)
        self._gathered = jax.jit(lambda params: params, out_shardings=self._shardings)
        self._copied = jax.jit(lambda state: state, out_shardings=replicated(mesh))

    def params(self, params: Any) -> Any:
        """Returns the parameters for the engine. In a gang all processes call, at the same point of their programs."""
        if self._shardings is None:
            return params
        if self._local is None:
            return jax.device_put(params, self._shardings)
        return jax.tree.map(self._own, self._gathered(params))

    def state(self, state: Any) -> Any:
        """Returns a copy of what the model learned beside its parameters; the trainer's own may be donated."""
        if self._local is None:
            return jax.tree.map(jnp.copy, state)
        return jax.tree.map(self._own, self._copied(state))

    def _own(self, array: jax.Array) -> jax.Array:
        """Returns this process's shards as an array on its own devices; nothing is moved."""
        assert self._local is not None
        placed: Any = array.sharding
        sharding = NamedSharding(self._local, placed.spec, memory_kind=placed.memory_kind)
        shards = [shard.data for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, shards)


def decoding_shardings(
    model: CausalLM, environment: Environment, spanning: frozenset[str] = frozenset()
) -> Any:  # fmt: skip
    """Returns the shardings for decoding: as trained, but over no axis that splits the batch or is in `spanning`.

    None without a mesh.
    """
    mesh = environment.mesh
    if not isinstance(mesh, Mesh):
        return None
    rows = {axis for name, axes in environment.plan.activation_rules if name in ("batch", "length") for axis in axes}
    rules: Rules = tuple(
        (name, tuple(axis for axis in axes if axis not in (spanning if name == "experts" else rows | spanning)))
        for name, axes in environment.plan.param_rules
    )
    return param_shardings(param_specs(model), rules, mesh)
