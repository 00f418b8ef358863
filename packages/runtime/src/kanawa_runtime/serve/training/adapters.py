"""LoRA of many tenants over one base model: gradients and updates of an adapter alone, the base shared and frozen."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors, adapter_pools
from kanawa.contracts import Batch, CausalLM, Environment, FeedForward, StoredAdapter
from kanawa.errors import UsageError
from kanawa.module import Module, functional, initialize
from kanawa.plugins import component

from kanawa_runtime.learn.learner import global_norm
from kanawa_runtime.serve.http.config import TrainingConfig
from kanawa_runtime.serve.training.losses import LOSSES
from kanawa_runtime.serve.training.wire import Row

Flat = dict[str, jax.Array]
_OURS = "kanawa-runtime"
_SHORTEST, _MOST_ROWS = 16, 64


@dataclasses.dataclass(frozen=True)
class AdapterKind:
    """What of the base model an adapter changes: its rank, and whether attention and feed-forward have one."""

    rank: int
    attention: bool = True
    feed_forward: bool = True


@dataclasses.dataclass(frozen=True)
class AdamStep:
    """The numbers of one update; a `clip_norm` of 0 clips nothing, and the decay is decoupled (AdamW)."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    clip_norm: float = 0.0


@dataclasses.dataclass(frozen=True)
class PassResult:
    """By row: the targets' log-probabilities and losses, fp32 [length]; and the gradient of their sum, if any."""

    logprobs: list[np.ndarray]
    losses: list[np.ndarray]
    gradients: Flat | None


class BaseModel:
    """The frozen model that tenants share, and the programs of each kind of adapter beside it.

    Used on one thread. `params` and `state` are those that the engine serves, in the form they are trained in.
    """

    def __init__(
        self, model: CausalLM, params: Any, state: Any, environment: Environment, config: TrainingConfig
    ) -> None:
        """Raises UsageError where the model has no projections that an engine could serve adapters of."""
        self.model, self.config, self.environment = model, config, environment
        self.params: Mapping[str, Any] = flatten_paths(params)
        self.state = state or {}
        pool = component("modifiers", "lora-pool", asker=_OURS).Config(slots=1, rank=1).build()
        pooled: Module = pool(model.config.clone()).build()
        #: By path of a projection that adapters may change: whether it belongs to a feed-forward layer.
        self.projections = {path: _in_feed_forward(pooled, path) for path in adapter_pools(pooled)}

    @functools.cache  # noqa: B019 - as many as there are kinds, for as long as the server runs
    def adapted(self, kind: AdapterKind) -> "AdaptedModel":
        """Returns the model with adapters of a kind; raises UsageError where nothing of it would change."""
        paths = [p for p, in_mlp in self.projections.items() if (kind.feed_forward if in_mlp else kind.attention)]
        if not paths:
            message = "nothing would be trained: set train_attn or train_mlp (the output layer takes no adapter here)"
            raise UsageError(message)
        return AdaptedModel(self, kind, paths)


class AdaptedModel:
    """The base model with one kind of adapter; an adapter is its parameters by path, fp32."""

    def __init__(self, base: BaseModel, kind: AdapterKind, paths: Sequence[str]) -> None:
        self.base, self.kind = base, kind
        lora = component("modifiers", "lora", asker=_OURS).Config(
            rank=kind.rank, alpha=base.config.alpha, targets=tuple(paths)
        )
        emits = component("modifiers", "policy-loss", asker=_OURS).Config()
        self.module: Module = emits.build()(lora.build()(base.model.config.clone())).build()
        self._programs: dict[tuple[str, bool], Any] = {}

    def initial(self, seed: int) -> Flat:
        """Returns a new adapter, which changes nothing yet."""

        def adapters(key: jax.Array) -> Flat:
            made = flatten_paths(initialize(self.module, key))
            return {path: leaf for path, leaf in made.items() if ".adapter." in path}

        with self.base.environment.active():
            made: Flat = jax.jit(adapters)(jax.random.key(seed, impl="threefry2x32"))
        return made

    def run(
        self, adapter: Flat, rows: Sequence[Row], loss: str, options: Mapping[str, float], *, forward_only: bool
    ) -> PassResult:
        """Returns the loss of rows, and its gradient by the adapter unless `forward_only`."""
        logprobs: list[Any] = [None] * len(rows)
        losses: list[Any] = [None] * len(rows)
        gradients: Flat | None = None
        numbers = {**LOSSES[loss].options, **options}
        scalars = {name: np.float32(number) for name, number in numbers.items()}
        with self.base.environment.active():
            for batch in _batches(rows, self.base.config.tokens_at_once):
                arrays = _laid_out([rows[index] for index in batch], LOSSES[loss].inputs)
                program = self._program(loss, forward_only)
                made, values, new = program(adapter, self.base.params, self.base.state, *arrays, scalars)
                for place, index in enumerate(batch):
                    length = len(rows[index].input_ids)
                    logprobs[index] = np.asarray(made[place, :length])
                    losses[index] = np.asarray(values[place, :length])
                if not forward_only:
                    gradients = new if gradients is None else _sum(gradients, new)
        return PassResult(logprobs, losses, gradients)

    def update(self, adapter: Flat, opt: Flat | None, gradients: Flat, step: AdamStep) -> tuple[Flat, Flat, float]:
        """Returns the adapter and its optimizer's state after one update by AdamW, and the gradients' norm."""
        with self.base.environment.active():
            before = _first_moments(adapter) if opt is None else opt
            numbers = {name: np.float32(number) for name, number in dataclasses.asdict(step).items()}
            after, state, norm = _adam(adapter, before, gradients, numbers)
        return after, state, float(norm)

    def stored(self, adapter: Flat) -> StoredAdapter:
        """Returns the adapter as engines take it."""
        return StoredAdapter(adapter_factors(self.module, unflatten_paths(jax.device_get(adapter))))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the shape of each of an adapter's arrays."""
        made = jax.eval_shape(lambda: initialize(self.module, jax.random.key(0, impl="threefry2x32")))
        return {path: leaf.shape for path, leaf in flatten_paths(made).items() if ".adapter." in path}

    def _program(self, loss: str, forward_only: bool) -> Any:
        if (loss, forward_only) not in self._programs:
            value = LOSSES[loss].value

            def total(
                adapter: Flat, fixed: Flat, state: Any, batch: Batch, inputs: Flat, options: Flat
            ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
                params = unflatten_paths({**fixed, **adapter})
                made = functional(self.module)(params, state, batch, train=False, emit=("**.logprobs",))[1].emitted
                (logprobs,) = made.values()
                is_there = batch.loss_weights > 0
                # What is beyond a row's end has to be finite too: zero times infinity is NaN.
                known = jnp.where(is_there, logprobs, 0.0)
                losses = jnp.where(is_there, value(known, inputs, options), 0.0)
                return jnp.sum(losses), (logprobs, losses)

            def forward(*arguments: Any) -> tuple[jax.Array, jax.Array, None]:
                _, (logprobs, losses) = total(*arguments)
                return logprobs, losses, None

            def both(*arguments: Any) -> tuple[jax.Array, jax.Array, Flat]:
                (_, (logprobs, losses)), gradients = jax.value_and_grad(total, has_aux=True)(*arguments)
                return logprobs, losses, gradients

            self._programs[loss, forward_only] = jax.jit(forward if forward_only else both)
        return self._programs[loss, forward_only]


def _in_feed_forward(module: Module, path: str) -> bool:
    """Returns whether a projection lies inside a feed-forward layer."""
    node = module
    for name in path.split("."):
        if name not in node.children:
            return False
        node = node.children[name]
        if isinstance(node, FeedForward):
            return True
    return False


def _batches(rows: Sequence[Row], tokens_at_once: int) -> list[list[int]]:
    """Returns the rows' numbers in groups of about equal length that are computed together."""
    by_length: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        by_length.setdefault(_room(len(row.input_ids)), []).append(index)
    made = []
    for length, members in sorted(by_length.items()):
        count = max(1, min(_MOST_ROWS, tokens_at_once // length))
        made += [members[start : start + count] for start in range(0, len(members), count)]
    return made


def _room(length: int) -> int:
    """Returns the padded length: of few, since each is compiled for."""
    return max(_SHORTEST, int(2 ** math.ceil(math.log2(length))))


def _laid_out(rows: Sequence[Row], names: Sequence[str]) -> tuple[Batch, dict[str, np.ndarray]]:
    length = _room(max(len(row.input_ids) for row in rows))
    shape = int(2 ** math.ceil(math.log2(len(rows)))), length
    ids, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    is_there = np.zeros(shape, np.float32)
    inputs = {name: np.zeros(shape, np.float32) for name in names}
    for place, row in enumerate(rows):
        count = len(row.input_ids)
        ids[place, :count], targets[place, :count] = row.input_ids, row.inputs["target_tokens"]
        is_there[place, :count] = 1.0
        for name in names:
            inputs[name][place, :count] = row.inputs[name]
    rows_of: Any = (ids, targets, None, None, is_there)
    return Batch(*rows_of), inputs


@jax.jit
def _sum(one: Flat, other: Flat) -> Flat:
    summed: Flat = jax.tree.map(jnp.add, one, other)
    return summed


def _first_moments(adapter: Flat) -> Flat:
    zeros = {f"{moment}/{path}": jnp.zeros_like(leaf) for moment in ("mu", "nu") for path, leaf in adapter.items()}
    return {**zeros, "count": jnp.zeros((), jnp.int32)}


@jax.jit
def _adam(adapter: Flat, opt: Flat, gradients: Flat, step: Flat) -> tuple[Flat, Flat, jax.Array]:
    norm = global_norm(gradients)
    clip = step["clip_norm"]
    scale = jnp.where(clip > 0, jnp.minimum(1.0, clip / jnp.maximum(norm, 1e-30)), 1.0)
    clipped = {path: gradient * scale for path, gradient in gradients.items()}
    transform = optax.scale_by_adam(step["beta1"], step["beta2"], step["eps"])
    mu, nu = ({path: opt[f"{moment}/{path}"] for path in adapter} for moment in ("mu", "nu"))
    updates, state = transform.update(clipped, optax.ScaleByAdamState(opt["count"], mu, nu), adapter)
    rate, decay = step["learning_rate"], step["weight_decay"]
    after = {path: leaf - rate * (updates[path] + decay * leaf) for path, leaf in adapter.items()}
    made = {**{f"mu/{p}": x for p, x in state.mu.items()}, **{f"nu/{p}": x for p, x in state.nu.items()}}
    return after, {**made, "count": state.count}, norm
