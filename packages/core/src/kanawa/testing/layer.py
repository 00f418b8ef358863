"""Conformance of a layer: subclass `LayerConformance`, give a config and inputs, and pytest does the rest."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.arrays.precision import Precision
from kanawa.arrays.rules import Rules
from kanawa.arrays.shardings import param_shardings
from kanawa.arrays.tree import flatten_paths
from kanawa.config import REQUIRED
from kanawa.foreign import table_of
from kanawa.module import Module, functional, initial_state, initialize, param_specs, scan
from kanawa.testing.conformance import ConfiguredConformance

#: How far parameters are moved to see a slope: fp32 sums lose digits below, curvature counts above.
_STEP = 1e-3


class LayerConformance(ConfiguredConformance):
    """What every layer promises. An author implements `config`, complete with what a parent would give, and `inputs`.

    `unsupported` may hold "gradients", "finite differences" (gradients that are not the derivative, or a step in the
    function), "bfloat16", "scan", "sharding", "foreign names", with a reason each.
    """

    _built: ClassVar[tuple[Any, Any, Any]]

    def inputs(self, key: jax.Array) -> tuple[Any, ...]:
        """Returns the arguments of `forward`, the first of which is an array."""
        raise AssertionError("implement inputs() in the conformance class")  # noqa: EM101

    # --- what the kit needs ----------------------------------------------------------------------------------

    def build(self) -> tuple[Any, Any, Any]:
        """Returns the module with parameters and state, made once a class."""
        cls = type(self)
        # vars, not getattr: a subclass has another config than the class whose module it would inherit.
        if "_built" not in vars(cls):
            module = self.config().build(name="layer")
            key = jax.random.key(0)
            params = jax.jit(lambda k: initialize(module, k))(key)
            cls._built = module, params, jax.jit(lambda k: initial_state(module, k))(key)
        return cls._built

    def call(self, params: Any, *inputs: Any, train: bool = False) -> Any:
        """Returns the array that a call returns: the result, or the first of several."""
        module, _, state = self.build()
        result, _ = functional(module)(params, state, *inputs, key=jax.random.key(1), train=train)
        return result[0] if isinstance(result, tuple) else result

    def compiled_call(self, params: Any, *inputs: Any) -> Any:
        """Returns the same through one compiled program, which is faster than many small ones."""
        return jax.jit(self.call)(params, *inputs)

    # --- the checks ------------------------------------------------------------------------------------------

    def test_specs_match_parameters(self) -> None:
        module, params, _ = self.build()
        specs, arrays = flatten_paths(param_specs(module)), flatten_paths(params)
        assert set(specs) == set(arrays)
        for path, spec in specs.items():
            assert arrays[path].shape == spec.shape, path
            assert arrays[path].dtype == jnp.dtype(spec.dtype), path

    def test_initialisation_is_finite_and_repeatable(self) -> None:
        module, first, _ = self.build()
        second = jax.jit(lambda k: initialize(module, k))(jax.random.key(0))
        for path, array in flatten_paths(first).items():
            assert np.isfinite(array).all(), path
            assert np.array_equal(array, flatten_paths(second)[path]), path

    def test_compiled_equals_eager_and_is_finite(self) -> None:
        _, params, _ = self.build()
        inputs = self.inputs(jax.random.key(2))
        eager, compiled = self.call(params, *inputs), self.compiled_call(params, *inputs)
        assert np.isfinite(np.asarray(compiled, np.float32)).all()
        np.testing.assert_allclose(eager, compiled, rtol=2e-5, atol=2e-5)

    def test_compute_dtype_is_kept(self) -> None:
        self.skip_unless("bfloat16")
        _, params, _ = self.build()
        first, *rest = self.inputs(jax.random.key(2))
        with use_plan(ExecutionPlan(precision=Precision(compute="bfloat16"))):
            result = self.compiled_call(params, first.astype(jnp.bfloat16), *rest)
        assert result.dtype == jnp.bfloat16

    def test_gradients_are_finite_reach_every_parameter_and_survive_remat(self) -> None:
        self.skip_unless("gradients")
        _, params, _ = self.build()
        inputs = self.inputs(jax.random.key(2))
        shape = jax.eval_shape(self.call, params, *inputs).shape
        # A plain sum is flat for layers that normalise or end in a softmax: their gradient would be zero, right or
        # wrong.
        weights = jax.random.normal(jax.random.key(3), shape)

        def loss(p: Any) -> jax.Array:
            out: jax.Array = (self.call(p, *inputs).astype(jnp.float32) * weights).sum()
            return out

        way = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.size), p.shape, p.dtype), params)

        def along(p: Any, distance: float) -> Any:
            return jax.tree.map(lambda x, w: x + distance * w, p, way)

        # One program: compiling takes most of the time.
        @jax.jit
        def everything(p: Any) -> tuple[Any, ...]:
            slope = (loss(along(p, _STEP)) - loss(along(p, -_STEP))) / (2 * _STEP)
            grads = jax.grad(loss)(p)
            said = sum(jnp.vdot(g, w) for g, w in zip(jax.tree.leaves(grads), jax.tree.leaves(way), strict=True))
            return grads, jax.grad(jax.checkpoint(loss))(p), slope, said, self.call(p, *inputs, train=True)

        plain, again, slope, said, trained = everything(params)
        assert np.isfinite(np.asarray(trained, np.float32)).all(), "not finite in training"
        if "finite differences" not in self.unsupported:
            # Slopes along random ways are about as large as the gradient; one that happens to be flat proves nothing.
            norms = (float(jnp.linalg.norm(g)) for g in jax.tree.leaves(plain))
            size = max(abs(float(slope)), abs(float(said)), *norms)
            assert abs(float(slope) - float(said)) <= 0.05 * size, f"gradients say {said}, differences {slope}"
        for path, grad in flatten_paths(plain).items():
            assert np.isfinite(grad).all(), path
            assert np.abs(grad).max() > 0, f"{path} has no gradient"
            repeated = flatten_paths(again)[path]
            np.testing.assert_allclose(grad, repeated, rtol=1e-4, atol=1e-5, err_msg=path)

    def test_scanned_equals_written_out(self) -> None:
        self.skip_unless("scan")
        inputs = self.inputs(jax.random.key(2))
        _, single, _ = self.build()
        shape = jax.eval_shape(self.call, single, *inputs)
        if (shape.shape, shape.dtype) != (inputs[0].shape, inputs[0].dtype):
            pytest.skip("its result isn't shaped like its input, so no stack can be made of it")
        layer: Any = self.config()
        scanned, unrolled = (Twice.Config(layer=layer, unrolled=u).build() for u in (False, True))
        key = jax.random.key(0)

        def both() -> tuple[Any, Any]:
            params, state = initialize(scanned, key), initial_state(scanned, key)
            one, other = (functional(m)(params, state, *inputs, key=key)[0] for m in (scanned, unrolled))
            return one, other

        one, other = jax.jit(both)()
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)

    def test_sharded_equals_whole(self) -> None:
        self.skip_unless("sharding")
        if jax.device_count() < 4:
            pytest.skip('needs 4 devices: set "kanawa_strict = true" in the pytest config')
        module, params, _ = self.build()
        inputs = self.inputs(jax.random.key(2))
        specs = param_specs(module)
        rules = splittable(specs, inputs[0])
        mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        whole = self.compiled_call(params, *inputs)
        with jax.set_mesh(mesh), use_plan(ExecutionPlan(param_rules=rules, activation_rules=rules)):
            placed = jax.device_put(params, param_shardings(specs, rules, mesh))
            split = self.compiled_call(placed, *inputs)
        np.testing.assert_allclose(np.asarray(split), np.asarray(whole), rtol=1e-4, atol=1e-4)

    def test_foreign_tensors_hold_every_parameter_and_come_back(self) -> None:
        self.skip_unless("foreign names")
        module, params, state = self.build()
        arrays = {"params": flatten_paths(params), "state": flatten_paths(state)}
        filled = {path: np.zeros(array.shape, bool) for path, array in arrays["params"].items()}
        for name, tensor in table_of(module).tensors.items():
            slices = [np.asarray(arrays[part.item][part.path])[part.where] for part in tensor.parts]
            joined = tensor.join(slices)
            assert joined.shape == tensor.shape, name
            for part, before, after in zip(tensor.parts, slices, tensor.split(joined), strict=True):
                np.testing.assert_array_equal(after, before, err_msg=f"{name}: {part.path}")
                if part.item == "params":
                    filled[part.path][part.where] = True
        lost = [path for path, covered in filled.items() if not covered.all()]
        assert not lost, f"no foreign tensor holds {lost}"


class Twice(Module):
    """Two layers of a kind, one after the other: scanned, or written out."""

    class Config(Module.Config):
        layer: Module.Config = REQUIRED
        unrolled: bool = False

    def setup(self) -> None:
        """Declares the stacked layer."""
        self.add_child("layer", self.config.layer, stacked=2)

    def forward(self, x: jax.Array, *rest: Any) -> jax.Array:
        """Returns the second layer's result."""
        layer: Any = self.children["layer"]

        def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            result = layer(x, *rest)
            return (result[0] if isinstance(result, tuple) else result), None

        out: jax.Array = scan(body, x, over="layer", unrolled=self.config.unrolled)[0]
        return out


def splittable(specs: Any, x: jax.Array) -> Rules:
    """Returns rules that split, in two each, every axis of the parameters that can be, and the batch."""
    # An axis must divide in every parameter that has it: rules hold for all arrays alike.
    uneven = {a for s in flatten_paths(specs).values() for a, size in zip(s.axes, s.shape, strict=True) if size % 2}
    tensor = [a for a in ("experts", "vocab", "heads", "kv_heads", "mlp") if a not in uneven]
    rules: list[tuple[str, tuple[str, ...]]] = [(axis, ("model",)) for axis in tensor]
    return (*([("batch", ("data",))] if x.ndim and x.shape[0] % 2 == 0 else []), *rules)
