"""Conformance of an optimizer: state that follows the parameters, ParamSpec traits respected, and it descends."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from kanawa.arrays.optimizer_state import follows, from_flat, parameter_of, state_sharding, to_flat
from kanawa.arrays.spec import ParamSpec
from kanawa.contracts import GradientTransformation
from kanawa.testing.conformance import ConfiguredConformance

Flat = dict[str, jax.Array]


@dataclasses.dataclass
class _Transformation(GradientTransformation):
    init: Callable[..., Any]
    update: Callable[..., Any]


#: One parameter of each kind a model has: looked up, vector, matrix, several heads, stacked layers, experts.
SPECS = {
    "embedding.weight": ParamSpec((16, 8), ("vocab", "embed"), fan_in_axes=(1,), fan_out_axes=(0,)),
    "norm.scale": ParamSpec((8,), ("embed",), weight_decay=0.0),
    "mlp.weight": ParamSpec((8, 16), ("embed", "mlp")),
    "q.weight": ParamSpec((8, 2, 4), ("embed", "heads", "head_dim"), fan_out_axes=(1, 2)),
    "stack.weight": ParamSpec((8, 16), ("embed", "mlp")).stacked(3),
    "experts.weight": ParamSpec((4, 8, 16), ("experts", "embed", "mlp"), fan_in_axes=(1,)).stacked(2),
}


class OptimizerConformance(ConfiguredConformance):
    """Subclasses return the optimizer's config. Needs no device but the CPU.

    `unsupported` may hold "weight decay", "descent", "stacking" with a reason each.
    """

    #: What makes `steps` updates on a quadratic worth at least half of its value.
    learning_rate: ClassVar[float] = 0.03
    steps: ClassVar[int] = 60
    #: How many updates at first only gather statistics, and change nothing but by decay.
    idle_updates: ClassVar[int] = 0
    _compiled: ClassVar[tuple[Any, Any]]

    # --- what the kit needs ----------------------------------------------------------------------------------

    def schedule(self, count: jax.Array) -> jax.Array:
        """Returns the learning rate, the same after any number of updates."""
        return jnp.full_like(count, self.learning_rate, dtype=jnp.float32)

    def transform(self, specs: dict[str, ParamSpec] = SPECS) -> GradientTransformation:
        """Returns the transformation at that rate."""
        return self._of(self.config(), specs)

    def _of(self, cfg: Any, specs: dict[str, ParamSpec]) -> GradientTransformation:
        """Returns the transformation; where it uses curvature, that of a quadratic whose Hessian is 2."""
        optimizer = cfg.build()
        result: GradientTransformation = optimizer.transformation(specs, self.schedule)
        if not optimizer.uses_curvature:
            return result

        def update(grads: Flat, state: Any, params: Flat) -> Any:
            two = {path: jnp.full_like(grad, 2.0) for path, grad in grads.items()}
            return result.update(grads, state, params, curvature=lambda: two)

        return _Transformation(result.init, update)

    def arrays(self, seed: int, specs: dict[str, ParamSpec] = SPECS) -> Flat:
        """Returns normal arrays of the parameters' shapes."""
        random = np.random.default_rng(seed)
        return {path: jnp.asarray(random.standard_normal(s.shape), jnp.float32) for path, s in specs.items()}

    def compiled(self) -> tuple[Any, Any]:
        """Returns (init, update) for all of `SPECS`, compiled once a class."""
        cls = type(self)
        if "_compiled" not in vars(cls):
            transform = self.transform()
            cls._compiled = transform.init, jax.jit(transform.update)
        return cls._compiled

    def _changes(self, specs: dict[str, ParamSpec], params: Flat, grads: list[Flat]) -> list[Flat]:
        """Returns the changes of one update after another."""
        transform = self.transform(specs)
        state, changes = transform.init(params), []
        update = jax.jit(transform.update)
        for grad in grads:
            change, state = update(grad, state, params)
            params = {path: param + change[path] for path, param in params.items()}
            changes.append(change)
        return changes

    def _at_rest(self, transform: GradientTransformation, params: Flat, grads: list[Flat]) -> list[Flat]:
        """Returns the changes of one update after another of the same parameters."""
        state, changes = transform.init(params), []
        update = jax.jit(transform.update)
        for grad in grads:
            change, state = update(grad, state, params)
            changes.append(change)
        return changes

    # --- the checks ------------------------------------------------------------------------------------------

    def test_state_is_flat_and_follows_the_parameters(self) -> None:
        state = to_flat(jax.eval_shape(self.transform().init, self.arrays(0)))
        for path, leaf in state.items():
            assert "/" in path, f"{path} lacks its transform's name: use optax.named_chain"
            if parameter_of(path) in SPECS:
                shape = SPECS[parameter_of(path)].shape
                assert follows(leaf.shape, shape), f"{path} is {leaf.shape}, its parameter {shape}"
                shared = [own == size for own, size in zip(leaf.shape, shape, strict=True)]
                assert any(shared) or leaf.shape == (1,) * len(shape), f"{path} is {leaf.shape}, its parameter {shape}"
            else:
                assert leaf.shape == (), f"{path} is {leaf.shape} and belongs to no parameter: it can't be sharded"

    def test_state_is_sharded_like_the_parameters(self) -> None:
        mesh = AbstractMesh((2,), ("fsdp",), axis_types=(AxisType.Auto,))
        whole = NamedSharding(mesh, PartitionSpec())
        split = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
        param = jax.ShapeDtypeStruct(SPECS["stack.weight"].shape, jnp.float32, sharding=split)
        state = to_flat(jax.eval_shape(self.transform().init, self.arrays(0)))
        for path, leaf in state.items():
            if parameter_of(path) == "stack.weight":
                sharding = state_sharding(leaf.shape, param, whole)
                assert isinstance(sharding, NamedSharding), path
                assert leaf.shape[1] % 2 or sharding.spec[1] == "fsdp", path

    def test_state_survives_a_checkpoint(self) -> None:
        (init, update), params = self.compiled(), self.arrays(0)
        _, state = update(self.arrays(1), init(params), params)
        saved = {path: np.asarray(leaf) for path, leaf in to_flat(state).items()}
        restored = from_flat(jax.eval_shape(init, params), {path: jnp.asarray(leaf) for path, leaf in saved.items()})
        straight, _ = update(self.arrays(2), state, params)
        resumed, _ = update(self.arrays(2), restored, params)
        for path, change in straight.items():
            np.testing.assert_array_equal(change, resumed[path], err_msg=path)

    def test_updates_are_finite_and_keep_shape_and_dtype(self) -> None:
        init, update = self.compiled()
        state = init(self.arrays(0))
        zero = jax.tree.map(jnp.zeros_like, self.arrays(0))
        for grads in (self.arrays(1), zero):
            changes, _ = update(grads, state, self.arrays(0))
            for path, change in changes.items():
                assert (change.shape, change.dtype) == (SPECS[path].shape, jnp.float32), path
                assert np.isfinite(change).all(), path

    def test_an_update_depends_on_what_came_before_it_alone(self) -> None:
        (init, update), params = self.compiled(), self.arrays(0)
        _, state = update(self.arrays(1), init(params), params)
        before = {path: np.array(leaf) for path, leaf in to_flat(state).items()}
        first, _ = update(self.arrays(2), state, params)
        again, _ = update(self.arrays(2), state, params)
        for path, change in first.items():
            np.testing.assert_array_equal(change, again[path], err_msg=f"{path}: one update, two results")
        for path, leaf in to_flat(state).items():
            np.testing.assert_array_equal(leaf, before[path], err_msg=f"{path} of the state was changed in place")

    def test_the_rate_scale_of_a_parameter_is_respected(self) -> None:
        scales = {"mlp.weight": 0.0, "norm.scale": 0.5}
        specs = {p: dataclasses.replace(s, lr_scale=scales.get(p, 1.0)) for p, s in SPECS.items()}
        params, grads = self.arrays(0), [self.arrays(1)] * (self.idle_updates + 1)
        scaled_changes, plain = (self._at_rest(self.transform(own), params, grads)[-1] for own in (specs, SPECS))
        for path, change in scaled_changes.items():
            expected = scales.get(path, 1.0) * plain[path]
            np.testing.assert_allclose(change, expected, rtol=1e-5, atol=2e-7, err_msg=path)
        assert np.abs(plain["mlp.weight"]).max() > 0

    def test_weight_decay_shrinks_what_decays_and_nothing_else(self) -> None:
        self.skip_unless("weight decay")
        cfg = self.config()
        assert "weight_decay" in cfg.fields(), 'no field weight_decay; list "weight decay" in `unsupported`'
        params, grads = self.arrays(0), [self.arrays(1)] * (self.idle_updates + 1)

        def changes(decay: float) -> Flat:
            transform = self._of(cfg.clone(weight_decay=decay), SPECS)
            return self._at_rest(transform, params, grads)[-1]

        without, with_decay = changes(0.0), changes(0.1)
        for path, spec in SPECS.items():
            # Decay pulls towards zero: against the parameter's sign, wherever it does anything.
            difference = (with_decay[path] - without[path]) * params[path]
            if spec.weight_decay:
                assert (difference <= 1e-7).all(), path
                assert (difference < 0).any(), path
            else:
                np.testing.assert_array_equal(with_decay[path], without[path], err_msg=path)

    def test_each_layer_of_a_stack_is_updated_by_itself(self) -> None:
        self.skip_unless("stacking")
        stacked, alone = SPECS["stack.weight"], SPECS["mlp.weight"]
        layers = range(stacked.shape[0])
        start = {"w": self.arrays(0)["stack.weight"]}
        # Layers of unlike size and three unlike gradients: at the first update of like layers a mean or a mask over the
        # whole stack is, within rounding, what each layer would have by itself.
        sizes = jnp.asarray([1.0, 30.0, 0.03])[:, None, None]
        grads = [{"w": sizes * self.arrays(seed)["stack.weight"]} for seed in (1, 2, 3)]
        together = self._changes({"w": stacked}, start, grads)
        for layer in layers:
            own = [{"w": grad["w"][layer]} for grad in grads]
            by_itself = self._changes({"w": alone}, {"w": start["w"][layer]}, own)
            for update, (whole, one) in enumerate(zip(together, by_itself, strict=True), 1):
                where = f"update {update} of layer {layer}: layers are mixed in a reduction"
                np.testing.assert_allclose(whole["w"][layer], one["w"], rtol=2e-3, atol=1e-5, err_msg=where)

    def test_it_descends_a_quadratic(self) -> None:
        self.skip_unless("descent")
        goal = self.arrays(7)
        transform = self.transform()
        optimizer = self.config().build()

        def loss(params: Flat) -> jax.Array:
            return jnp.stack([jnp.sum(jnp.square(params[path] - goal[path])) for path in params]).sum()

        def step(carry: Any, _: None) -> tuple[Any, None]:
            params, state = carry
            changes, state = transform.update(jax.grad(loss)(params), state, params)
            return ({path: param + changes[path] for path, param in params.items()}, state), None

        def train(params: Flat) -> tuple[Flat, Any]:
            return jax.lax.scan(step, (params, transform.init(params)), None, self.steps)[0]

        start = self.arrays(0)
        params, state = jax.jit(train)(start)
        assert loss(optimizer.evaluated(params, to_flat(state))) < 0.5 * loss(start)
