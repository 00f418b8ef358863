"""The training workload: one config with slots for model, data, learner and gradients, and its programs."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import kanawa as kn
from kanawa.arrays.optimizer_state import on_device, parameter_of, state_sharding, stored_in
from kanawa.arrays.prng import step_key
from kanawa.arrays.shardings import abstract_params, array_sharding, replicated
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import (
    Batch,
    BatchShape,
    Checkpointer,
    DataSource,
    Environment,
    GradientStrategy,
    Loader,
    Model,
    ModelLoss,
    Program,
    RolloutBatch,
    RolloutShape,
    RowField,
    Service,
    Workload,
    adjust_parameters,
)
from kanawa.errors import UsageError
from kanawa.module import Outputs, next_state, param_specs, state_specs

from kanawa_runtime.checkpoint import AutoCheckpointer
from kanawa_runtime.data.loader import GrainLoader
from kanawa_runtime.learn.learner import Learner
from kanawa_runtime.services.watchdog import Watchdog
from kanawa_runtime.train.curvature import curvature_of
from kanawa_runtime.train.gradients import WholeBatch, spoilt
from kanawa_runtime.train.init_from import InitFrom
from kanawa_runtime.train.policies import CheckpointPolicy, DivergencePolicy, EvaluationPolicy, HealthPolicy
from kanawa_runtime.train.rollout_slot import RolloutConfig
from kanawa_runtime.train.step_report import Soundness, StepReport


class TrainState(NamedTuple):
    """All that a step changes; donated to the step. `opt` is flat: "transform/path" to array."""

    step: jax.Array
    params: dict[str, Any]
    state: dict[str, Any]
    opt: dict[str, jax.Array]


class Trainer(Workload):
    """Trains `model` on `data`: `steps` updates of `batch_size` rows each.

    `seed` draws all that is random: parameters, dropout, the order of the data, rollouts; `data.seed` pins the data.

    With `rollouts`, rows of data are prompts, and each batch is what the model has written after them.
    """

    class Config(Workload.Config):
        PLACEMENT: ClassVar[tuple[str, ...]] = (
            "execution",
            "gradients",
            "evaluation",
            "checkpoints",
            "checkpointer",
            "loader",
            "services",
            "health",
            # What is done about a bad batch has to be settable on the run that met it.
            "divergence",
            # `--set steps=N` spans the schedule anew, and is recorded as a change.
            "steps",
        )

        data: DataSource.Config = kn.REQUIRED
        rollouts: RolloutConfig | None = None
        batch_size: kn.Size = kn.REQUIRED
        steps: kn.Size = kn.REQUIRED
        seed: kn.Seed = 0
        learner: Learner.Config = Learner.Config()
        gradients: GradientStrategy.Config = WholeBatch.Config()
        evaluation: EvaluationPolicy = EvaluationPolicy()
        checkpoints: CheckpointPolicy = CheckpointPolicy()
        checkpointer: Checkpointer.Config = AutoCheckpointer.Config()
        loader: Loader.Config = GrainLoader.Config()
        services: tuple[Service.Config, ...] = (Watchdog.Config(),)
        health: HealthPolicy = HealthPolicy()
        divergence: DivergencePolicy = DivergencePolicy()
        sample_prompt: str = ""
        init_from: InitFrom | None = None

        def seeded_data(self) -> DataSource.Config:
            """Returns the data, drawn by the run's seed where theirs isn't pinned."""
            return self.data.seeded(self.seed)

        def batch_shape(self) -> BatchShape:
            """Returns the rows of a step's batch and the tokens of a row; a row of anything else is one position."""
            return BatchShape(self.batch_size, self.data.sequence_length if _has_tokens(self.data) else 1)

        def rollout_shape(self) -> RolloutShape | None:
            """Returns what the rollouts draw for a batch."""
            shape = self.batch_shape()
            return None if self.rollouts is None else self.rollouts.shape(shape.rows, shape.length)

        def check(self) -> list[str]:
            """Returns what of the rollouts doesn't fit a batch."""
            if self.rollouts is None:
                return []
            problems = self.rollouts.problems_of(self.batch_size, self.data.sequence_length, self.model)
            strategy: Any = self.gradients._target
            if self.rollouts.has_draw_keys and not strategy.is_plain_sum:
                problems.append(
                    f"rollouts.exact is set, and gradients is {type(self.gradients).__qualname__}, which computes the "
                    "forward pass inside of its own; use the whole batch or --modify accumulate:microbatches=N, or "
                    "unset rollouts.exact"
                )
            return problems

    def __init__(self, cfg: Config, *, model: Model | None = None) -> None:
        super().__init__(cfg, model=model)
        self.specs = param_specs(self.model)
        self.state_specs = state_specs(self.model)
        self.rule = cfg.learner.build().update_rule(flatten_paths(self.specs), cfg.steps)
        self.gradient_strategy = cfg.gradients.build()
        if cfg.learner.loss_scale is not None and self.gradient_strategy.replaces_stack:
            message = (
                f"learner.loss_scale doesn't reach the parts that {type(self.gradient_strategy).__name__} runs; "
                "use bfloat16 (execution.precision.compute), which needs none, or another gradient strategy"
            )
            raise UsageError(message)
        data = cfg.seeded_data()
        rollouts = cfg.rollouts
        data = data.in_batches(cfg.batch_size) if rollouts is None else rollouts.prompts(data, cfg.batch_size)
        self.source: DataSource = data.build()

    @property
    def averages(self) -> bool:
        """Whether what is evaluated is an average that only the optimizer's state gives."""
        return bool(self.rule.averages)

    # --- programs --------------------------------------------------------------------------------------------

    def programs(self, environment: Environment) -> Mapping[str, Program]:
        """Returns `init`, `train_step` and `eval_step`."""
        if self.config.rollouts is not None:
            environment = self.config.rollouts.environment(environment)
        state = self.abstract_state(environment)
        batch = self.abstract_batch(environment)
        trained_on = batch if self.config.rollouts is None else self.abstract_rollouts(batch)
        mesh = environment.mesh
        shardings = None if mesh is None else jax.tree.map(lambda leaf: leaf.sharding, state)
        whole = None if mesh is None else replicated(mesh)
        both = None if mesh is None else (shardings, whole)
        eval_args = (state.params, state.state, batch)
        return {
            "init": Program("init", self.init, (), (), shardings, environment),
            "train_step": Program("train_step", self.train_step, (state, trained_on), (0,), both, environment),
            "eval_step": Program("eval_step", self.eval_step, eval_args, (), whole, environment),
        }

    def init(self) -> TrainState:
        """Returns the state before the first update; a pure function of the config."""
        key = jax.random.key(self.config.seed, impl="threefry2x32")
        params = kn.initialize(self.model, jax.random.fold_in(key, 0))
        state = kn.initial_state(self.model, jax.random.fold_in(key, 1))
        opt = self.rule.init(flatten_paths(params))
        return TrainState(jnp.zeros((), jnp.int32), params, state, opt)

    def train_step(self, before: TrainState, batch: Batch) -> tuple[TrainState, StepReport]:
        """Returns the state after one update, and the report of the loss before it."""
        trained, loss = self.trained_part(before.params)
        scaled = dataclasses.replace(loss, scale=self.rule.loss_scale(before.opt))
        key = step_key(self.config.seed, before.step)
        return self.updated(before, batch, *self.gradient_strategy.gradients(scaled, trained, before.state, batch, key))

    def updated(self, before: TrainState, batch: Batch, grads: Any, outputs: Outputs) -> tuple[TrainState, StepReport]:
        """Returns what `train_step` does, from the gradients and outputs of the scaled loss."""
        scale = self.rule.loss_scale(before.opt)
        outputs = outputs if scale is None else outputs.scaled(1.0 / scale)
        grads = spoilt(grads, before.step)
        old = {"params": flatten_paths(before.params), "opt": on_device(before.opt)}
        extra = {}
        if self.rule.uses_curvature:
            trained, loss = self.trained_part(before.params)
            key = step_key(self.config.seed, before.step)
            extra["curvature"] = curvature_of(self.gradient_strategy, loss, trained, before.state, batch, key)
        params, opt, metrics = self.rule.update(flatten_paths(grads), old["opt"], old["params"], **extra)
        state = next_state(before.state, outputs)
        adjusted = flatten_paths(adjust_parameters(self.model, unflatten_paths(params), state))
        params = {path: adjusted[path] if path in self.rule.specs else leaf for path, leaf in params.items()}
        after = TrainState(before.step + 1, unflatten_paths(params), state, opt)
        new = {"params": params, "opt": opt, "state": flatten_paths(state)}
        soundness = Soundness.of(new, old | {"state": flatten_paths(before.state)})
        return after, StepReport.of_training(outputs, metrics, soundness)

    def evaluated(self, params: Any, opt: dict[str, jax.Array]) -> Any:
        """Returns the parameters to evaluate and serve with; an averaging optimizer's differ from those it trains."""
        if not self.rule.averages:
            return params
        return unflatten_paths(self.rule.evaluated(flatten_paths(params), on_device(opt)))

    def eval_step(self, params: Any, state: Any, batch: Batch) -> StepReport:
        """Returns the report of a batch without training on it."""
        _, outputs = kn.functional(self.model)(params, state, batch, train=False)
        return StepReport.of(outputs)

    def trained_part(self, params: Any) -> tuple[Any, ModelLoss]:
        """Returns the parameters that the learner trains, and the loss as a function of those alone.

        Frozen ones are constants of that function: no gradient of theirs is computed, summed or sent anywhere.
        """
        flat = flatten_paths(params)
        if flat.keys() == self.rule.specs.keys():
            return params, ModelLoss(self.model)
        fixed = unflatten_paths({path: leaf for path, leaf in flat.items() if path not in self.rule.specs})
        trained = unflatten_paths({path: flat[path] for path in self.rule.specs})
        return trained, ModelLoss(self.model, fixed)

    # --- shapes ----------------------------------------------------------------------------------------------

    def abstract_state(self, environment: Environment) -> TrainState:
        """Returns shapes, dtypes and shardings of the state; optimizer arrays shaped like a parameter follow it."""
        rules, mesh = environment.plan.param_rules, environment.mesh
        params = abstract_params(self.specs, rules, mesh)
        state = abstract_params(self.state_specs, rules, mesh)
        flat = flatten_paths(params)
        opt = self.rule.abstract(flat)
        whole = None if mesh is None else replicated(mesh)
        step = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
        memory = environment.plan.optimizer_memory
        placed = {n: stored_in(_placed(leaf, flat.get(parameter_of(n)), whole), memory) for n, leaf in opt.items()}
        shapes: Any = (step, params, state, placed)
        return TrainState(*shapes)

    def abstract_batch(self, environment: Environment) -> Any:
        """Returns the source's record of shapes, dtypes and shardings of one global batch, without opening the data."""
        mesh, rules = environment.mesh, environment.plan.activation_rules

        def abstract(field: RowField | None) -> jax.ShapeDtypeStruct | None:
            if field is None:
                return None
            shape, axes, sharding = (self.config.batch_size, *field.shape), ("batch", *field.axes), None
            if mesh is not None:
                sharding = array_sharding(shape, axes, rules, mesh, "batch_size")
            return jax.ShapeDtypeStruct(shape, jnp.dtype(field.dtype), sharding=sharding)

        record: Any = self.source.batch
        return record(**{name: abstract(field) for name, field in self.source.fields.items()})

    def abstract_rollouts(self, batch: Batch) -> RolloutBatch:
        """Returns what a step takes where rows of such batches are prompts."""
        ids, numbers, rollouts = batch.input_ids, batch.loss_weights, self.config.rollouts
        old, near = (numbers if held else None for held in (rollouts.has_old_logprobs, rollouts.has_reference))
        return RolloutBatch(*(ids,) * 4, *(numbers,) * 3, old, near, ids if rollouts.has_draw_keys else None)


def _has_tokens(data: Any) -> bool:
    # Composition asks before it reports data that aren't set.
    kind: Any = data._target if isinstance(data, DataSource.Config) else None
    return kind is not None and "input_ids" in kind.batch._fields


def _placed(leaf: jax.ShapeDtypeStruct, param: jax.ShapeDtypeStruct | None, whole: Any) -> jax.ShapeDtypeStruct:
    """Returns an optimizer array's abstract form, sharded as its parameter is; `whole` if it belongs to none."""
    sharding = whole if param is None else state_sharding(leaf.shape, param, whole)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
