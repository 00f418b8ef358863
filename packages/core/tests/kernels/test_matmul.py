"""The operation matmul: one dot where nothing else is installed, else any kernel, with derivatives of core's own."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import Kernel
from kanawa.kernels.choice import list_choices
from kanawa.kernels.matmul import matmul, preferred_weight_layout
from kanawa.kernels.matmul.problem import MATMUL, MatmulProblem, ReferenceMatmul
from kanawa.kernels.selection import select
from kanawa.kernels.verdict import first_refusal
from kanawa.testing.kernel import KernelConformance
from kanawa_kernel_tools.examples.matmul import BASE, EXAMPLES

HERE = __name__
LAYOUTS = list(itertools.product(("rows_first", "inner_first"), ("inner_first", "outputs_first")))


class TestReference(KernelConformance):
    # Any kernel is compared on the same problems; of the reference, fp32 against fp64 is all there is to see.
    generated = 4
    fewest_accepted = 4

    def kernel(self):
        return ReferenceMatmul()


class HostMatmul(Kernel):
    """NumPy on the host, by a call that JAX can't differentiate."""

    name = "matmul.cpu.host"
    operation = "matmul"
    local = True
    in_process = True

    def supports(self, problem, device):
        return first_refusal((problem.precision != "default", "it has one precision"))

    def preferred(self, problem, device):
        return dataclasses.replace(problem, weight_layout="outputs_first")

    def forward(self, problem, operands):
        def multiply(x, weight):
            x = x if problem.x_layout == "rows_first" else x.T
            weight = weight if problem.weight_layout == "inner_first" else weight.T
            return (np.asarray(x, np.float64) @ np.asarray(weight, np.float64)).astype(result.dtype)

        result = jax.ShapeDtypeStruct(problem.out_shape, problem.dtype)
        return jax.pure_callback(multiply, result, operands["x"], operands["weight"]), None


class Transposes(HostMatmul):
    """Returns the result transposed."""

    name = "matmul.cpu.transposes"

    def forward(self, problem, operands):
        return super().forward(problem, operands)[0].T, None


class Widens(HostMatmul):
    """Returns fp32, whatever was asked for."""

    name = "matmul.cpu.widens"

    def forward(self, problem, operands):
        return super().forward(problem, operands)[0].astype(jnp.float32), None


@pytest.fixture
def host_matmul(install):
    install(kanawa={"matmul.any.xla": "kanawa.kernels.matmul.problem:ReferenceMatmul"},
            stranger={"matmul.cpu.host": f"{HERE}:HostMatmul"})  # fmt: skip
    jax.clear_caches()
    yield
    jax.clear_caches()


def operands(x_layout, weight_layout, dtype="float32"):
    problem = dataclasses.replace(
        BASE, rows=12, inner=8, outputs=10, x_layout=x_layout, weight_layout=weight_layout, x_dtype=dtype,
        weight_dtype=dtype,
    )  # fmt: skip
    made = EXAMPLES.operands(problem, np.random.default_rng(0))
    return jnp.asarray(made["x"]), jnp.asarray(made["weight"])


def layouts(x_layout, weight_layout):
    return {"inner_first": x_layout == "inner_first", "outputs_first": weight_layout == "outputs_first"}


def close(ours, right, tolerance=2e-5):
    right = np.asarray(right, np.float64)
    np.testing.assert_allclose(np.asarray(ours, np.float64), right, atol=tolerance * max(1.0, np.abs(right).max()))


def exact(x, weight, x_layout, weight_layout):
    x, weight = (np.asarray(operand.astype(jnp.float32), np.float64) for operand in (x, weight))
    x = x.T if x_layout == "inner_first" else x
    return x @ (weight.T if weight_layout == "outputs_first" else weight)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_another_kernel_it_is_one_dot_general_of_the_operands_as_they_are(dtype, tied):
    x, weight = jnp.ones((2, 3, 4, 5), dtype), jnp.ones((7, 4, 5) if tied else (4, 5, 7), dtype)
    jaxpr = jax.make_jaxpr(lambda x, w: matmul(x, w, 2, outputs_first=tied))(x, weight)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["dot_general"]
    assert jaxpr.eqns[0].params["preferred_element_type"] is None
    assert jaxpr.out_avals[0].shape == (2, 3, 7) and jaxpr.out_avals[0].dtype == dtype
    lowered = jax.jit(jax.grad(lambda x, w: matmul(x, w, 2, outputs_first=tied).sum())).lower(x, weight)
    assert "custom" not in lowered.as_text()


@pytest.mark.usefixtures("host_matmul")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("x_layout", "weight_layout"), LAYOUTS)
def test_values_and_gradients_in_both_modes_are_those_of_fp64(x_layout, weight_layout, dtype):
    x, weight = operands(x_layout, weight_layout, dtype)
    how = layouts(x_layout, weight_layout)
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    jaxpr = str(jax.make_jaxpr(lambda x, w: matmul(x, w, **how))(x, weight))
    assert "kanawa_matmul" in jaxpr and "dot_general" not in jaxpr
    y, pull = jax.vjp(lambda x, w: matmul(x, w, **how), x, weight)
    close(y.astype(jnp.float32), exact(x, weight, x_layout, weight_layout), tolerance)
    assert y.dtype == dtype
    cotangent = jnp.asarray(np.random.default_rng(1).standard_normal(y.shape), dtype)
    dx, dweight = pull(cotangent)
    dy = np.asarray(cotangent.astype(jnp.float32), np.float64)
    x64, w64 = (np.asarray(each.astype(jnp.float32), np.float64) for each in (x, weight))
    x64, w64 = (x64.T if how["inner_first"] else x64), (w64.T if how["outputs_first"] else w64)
    right_x, right_w = dy @ w64.T, x64.T @ dy
    close(dx.astype(jnp.float32), right_x.T if how["inner_first"] else right_x, tolerance)
    close(dweight.astype(jnp.float32), right_w.T if how["outputs_first"] else right_w, tolerance)
    assert dx.dtype == dweight.dtype == dtype
    # Forward mode: the tangent is a matmul of each tangent.
    _, tangent = jax.jvp(lambda x, w: matmul(x, w, **how), (x, weight), (x, weight))
    close(tangent.astype(jnp.float32), 2 * exact(x, weight, x_layout, weight_layout), tolerance)


@pytest.mark.usefixtures("host_matmul")
def test_second_derivatives_and_a_forward_derivative_of_a_gradient():
    x, weight = operands("rows_first", "inner_first")
    ours = lambda scale: jnp.sum(jnp.sin(0.1 * matmul(scale * x, scale * weight)))  # noqa: E731
    plain = lambda scale: jnp.sum(jnp.sin(0.1 * (scale * x) @ (scale * weight)))  # noqa: E731
    close(jax.hessian(ours)(0.7), jax.hessian(plain)(0.7), 1e-4)
    close(jax.grad(jax.grad(ours))(0.7), jax.grad(jax.grad(plain))(0.7), 1e-4)


@pytest.mark.usefixtures("host_matmul")
@pytest.mark.parametrize(("x_layout", "weight_layout"), LAYOUTS)
@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_mapped_operands(x_layout, weight_layout, mapped):
    how = layouts(x_layout, weight_layout)
    x, weight = operands(x_layout, weight_layout)
    xs, weights = (jnp.stack([each, 2 * each, 3 * each]) for each in (x, weight))
    args = [
        each[0] if axis is None else jnp.moveaxis(each, 0, axis)
        for each, axis in zip((xs, weights), mapped, strict=True)
    ]
    ours = jax.vmap(lambda x, w: matmul(x, w, **how), in_axes=mapped)(*args)
    factors = [1.0, 4.0, 9.0] if None not in mapped else [1.0, 2.0, 3.0]
    right = exact(x, weight, x_layout, weight_layout)
    for one, factor in zip(ours, factors, strict=True):
        close(one, factor * right)


@pytest.mark.usefixtures("host_matmul")
def test_a_weight_is_not_copied_for_every_mapped_row():
    x, weight = operands("rows_first", "inner_first")
    mapped = jax.vmap(lambda x: matmul(x, weight))
    shapes = {v.aval.shape for e in jax.make_jaxpr(mapped)(jnp.stack([x, x, x])).eqns for v in e.outvars}
    assert (3, *weight.shape) not in shapes


@pytest.mark.usefixtures("host_matmul")
def test_scan_and_remat_give_the_same_gradients():
    x, _ = operands("rows_first", "inner_first")
    weights = jnp.asarray(np.random.default_rng(2).standard_normal((3, 8, 8)) / 3, jnp.float32)

    def loss(product, body):
        layer = body(lambda x, w: (jnp.sin(product(x, w)), None))
        return lambda weights: jnp.sum(jax.lax.scan(layer, x, weights)[0] ** 2)

    right = jax.jit(jax.grad(loss(jnp.matmul, lambda f: f)))(weights)
    for body in (lambda f: f, jax.checkpoint):
        close(jax.jit(jax.grad(loss(matmul, body)))(weights), right, 1e-4)


@pytest.mark.usefixtures("host_matmul")
def test_gradients_get_kernels_of_their_own_and_are_in_the_manifest_of_training():
    import kanawa as kn

    class Two(kn.Module):
        def setup(self):
            self.add_param("weight", (8, 10), axes=(None, None))

        def forward(self, x):
            return matmul(matmul(x, self.param("weight")), self.param("weight"), outputs_first=True)

    module = Two.Config().build()
    params = kn.initialize(module, jax.random.key(0))
    _, outputs = kn.functional(module)(params, {}, jnp.ones((12, 8)))
    assert [choice.kernel for choice in outputs.kernels] == ["matmul.cpu.host"] * 2
    _, outputs = kn.functional(module)(params, {}, jnp.ones((12, 8)), train=True)
    problems = {choice.problem for choice in outputs.kernels}
    assert "float32[12,10] x float32[8,10].T, train" in problems
    assert "float32[12,8].T x float32[12,10], train" in problems
    # The gradients of the second are the same problems as the first and its gradient.
    assert len(problems) == 3


@pytest.mark.usefixtures("host_matmul")
def test_equal_calls_are_one_choice_with_a_count():
    import kanawa as kn

    class Layer(kn.Module):
        def setup(self):
            self.add_param("weight", (8, 8), axes=(None, None))

        def forward(self, x):
            return matmul(matmul(x, self.param("weight")), self.param("weight"))

    class Stack(kn.Module):
        class Config(kn.Module.Config):
            layer: Layer.Config = Layer.Config()
            unrolled: bool = False

        def setup(self):
            self.add_child("layer", self.config.layer, stacked=3)

        def forward(self, x):
            return kn.scan(lambda c, _: (self.layer(c), None), x, over="layer", unrolled=self.config.unrolled)[0]

    for unrolled in (False, True):
        module = Stack.Config(unrolled=unrolled).build()
        params = kn.initialize(module, jax.random.key(0))
        _, outputs = kn.functional(module)(params, {}, jnp.ones((12, 8)))
        assert [choice.as_json()["count"] for choice in outputs.kernels] == [6]
        (head, problem) = list_choices(choice.as_json() for choice in outputs.kernels)
        assert head == "matmul: matmul.cpu.host"
        assert problem == "    for float32[12,8] x float32[8,8], train (6 calls)"


@pytest.mark.usefixtures("host_matmul")
def test_a_pin_to_the_reference_leaves_the_dot_bare():
    x, weight = operands("rows_first", "inner_first")
    with use_plan(ExecutionPlan(kernels=KernelPolicy(pins=(("matmul", "matmul.any.xla"),)))):
        jaxpr = jax.make_jaxpr(matmul)(x, weight)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["dot_general"]


@pytest.mark.usefixtures("host_matmul")
def test_operands_on_a_mesh_and_programs_for_other_devices_get_the_reference():
    x, weight = operands("rows_first", "inner_first")
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        assert "kanawa_matmul" not in str(jax.make_jaxpr(matmul)(x, weight))
        choice = select(MATMUL, BASE, "it is spread").choice
    assert choice.refused == (("matmul.cpu.host", "it is spread"),)
    with use_plan(ExecutionPlan(platform="cpu", device_kind="cpu")):
        assert "kanawa_matmul" not in str(jax.make_jaxpr(matmul)(x, weight))
        assert "runs in the process that traces it" in select(MATMUL, BASE).choice.refused[0][1]
    # Nothing is called in a survey, which says what this process would get.
    with use_plan(ExecutionPlan(platform="cpu", device_kind="cpu", kernels=KernelPolicy(survey=True))):
        assert select(MATMUL, BASE).choice.kernel == "matmul.cpu.host"


@pytest.mark.usefixtures("host_matmul")
def test_what_a_kernel_refuses_the_reference_computes():
    x, weight = operands("rows_first", "inner_first")
    highest = dataclasses.replace(BASE, precision="highest")
    assert select(MATMUL, highest).choice.kernel == "matmul.any.xla"
    close(matmul(x, weight, precision="highest"), exact(x, weight, "rows_first", "inner_first"))


def test_the_preferred_layout_is_that_of_the_best_kernel(install, host_matmul):
    assert preferred_weight_layout(1, 8, 8, dtype="float32", purpose="decode") == "outputs_first"
    with use_plan(ExecutionPlan(kernels=KernelPolicy(pins=(("matmul", "matmul.any.xla"),)))):
        assert preferred_weight_layout(1, 8, 8, dtype="float32", purpose="decode") == "inner_first"
    install(kanawa={"matmul.any.xla": "kanawa.kernels.matmul.problem:ReferenceMatmul"})
    assert preferred_weight_layout(1, 8, 8, dtype="float32", purpose="decode") == "inner_first"


@pytest.mark.parametrize(
    ("bad", "found"), [(Transposes, r"float32\[10, 12\]"), (Widens, r"float32\[12, 10\] for bfloat16")]
)
def test_a_kernel_that_returns_another_result_is_named(install, bad, found):
    install(stranger={bad.name: f"{HERE}:{bad.__name__}"})
    x, weight = operands("rows_first", "inner_first", "float32" if bad is Transposes else "bfloat16")
    with pytest.raises(KernelError, match=rf"{bad.name} returned {found}.*expected"):
        jax.jit(matmul).lower(x, weight)
    jax.clear_caches()


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(KernelError, match=r"x \(4, 3\) and weight \(4, 5\) don't share 1 contracted dimension"):
        matmul(jnp.ones((4, 3)), jnp.ones((4, 5)))
    with pytest.raises(KernelError, match="outputs first don't share 2 contracted dimensions"):
        matmul(jnp.ones((2, 4, 3)), jnp.ones((4, 3, 5)), 2, outputs_first=True)


@pytest.mark.usefixtures("host_matmul")
@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((3, 0), (0, 4)), ((3, 4), (4, 0))])
def test_what_is_empty_has_a_result_of_zeros(shapes):
    out = matmul(*(jnp.ones(shape) for shape in shapes))
    assert np.array_equal(out, np.zeros((shapes[0][0], shapes[1][1])))


@pytest.mark.parametrize(("x_layout", "weight_layout"), LAYOUTS)
def test_gradient_problems_have_the_shapes_of_what_they_are_gradients_of(x_layout, weight_layout):
    problem = MatmulProblem(
        rows=3, inner=5, outputs=7, x_dtype="bfloat16", weight_dtype="float16", sum_dtype="float32", dtype="float32",
        x_layout=x_layout, weight_layout=weight_layout,
    )  # fmt: skip
    dx, dweight = problem.x_gradient(), problem.weight_gradient()
    assert (dx.out_shape, dx.dtype) == (problem.x_shape, "bfloat16")
    assert (dweight.out_shape, dweight.dtype) == (problem.weight_shape, "float16")
    assert sorted((dx.x_dtype, dx.weight_dtype)) == ["float16", "float32"]
    assert sorted((dweight.x_dtype, dweight.weight_dtype)) == ["bfloat16", "float32"]
    assert dx.matmul_flops == dweight.matmul_flops == problem.matmul_flops
