"""Matmul kernels of a CPU: right for every layout, dtype and purpose, and chosen where each is the fastest."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.kernels.matmul import matmul, preferred_weight_layout
from kanawa.kernels.matmul.problem import MATMUL, MatmulProblem
from kanawa.kernels.selection import select
from kanawa.kernels.softmax_cross_entropy import softmax_cross_entropy
from kanawa_backends_cpu.kernels.matmul import native, onednn_matmul
from kanawa_backends_cpu.kernels.matmul.available import why_no_native, why_no_onednn
from kanawa_backends_cpu.kernels.matmul.dots import DotsMatmul
from kanawa_backends_cpu.kernels.matmul.few_rows import FewRowsMatmul
from kanawa_backends_cpu.kernels.matmul.native import NativeMatmul
from kanawa_backends_cpu.kernels.matmul.onednn_matmul import OnednnMatmul
from kanawa_backends_cpu.processor import has_bf16_pairs
from kanawa_kernel_tools.examples.matmul import example_operands

KERNELS = [NativeMatmul(), DotsMatmul(), OnednnMatmul(), FewRowsMatmul()]
DTYPES = {
    "float32": ("float32",) * 4,
    "bfloat16": ("bfloat16",) * 4,
    "bfloat16 to float32": ("bfloat16", "bfloat16", "float32", "float32"),
    "a wide cotangent": ("float32", "bfloat16", "float32", "bfloat16"),
}
HERE = pytest.mark.skipif(
    bool(why_no_native() or why_no_onednn("bfloat16")), reason="not all kernels run on this processor"
)
HAS_PAIRS = why_no_native() is None and has_bf16_pairs()
PAIRS = pytest.mark.skipif(not HAS_PAIRS, reason="dot products of pairs need AVX512_BF16, and AMX is preferred")


def problem(rows=1, inner=1, outputs=1, dtype="float32", **rest):
    x, weight, sums, out = DTYPES[dtype]
    return MatmulProblem(
        rows=rows, inner=inner, outputs=outputs, x_dtype=x, weight_dtype=weight, sum_dtype=sums, dtype=out, **rest
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_those_of_fp64(kernel, dtype, monkeypatch):
    for module, name in ((native, "SMALLEST"), (onednn_matmul, "SMALLEST"), (onednn_matmul, "FASTER_BY_XLA")):
        monkeypatch.setattr(module, name, {"float32": 0, "bfloat16": 0})
    for name in ("_SMALLEST_IN_SERVING", "_LARGE_WEIGHT"):
        monkeypatch.setattr(onednn_matmul, name, 0)
    layouts = itertools.product(("rows_first", "inner_first"), ("inner_first", "outputs_first"))
    computed = 0
    for (x_layout, weight_layout), rows, purpose in itertools.product(layouts, (1, 12, 100), ("train", "decode")):
        p = problem(
            rows, 64, 33, dtype, x_layout=x_layout, weight_layout=weight_layout, purpose=purpose
        )  # fmt: skip
        if not kernel.supports(p, None):
            continue
        made = example_operands(p, np.random.default_rng(rows))
        out = jax.jit(lambda operands, p=p: kernel.apply(p, operands))(made)
        assert (out.shape, out.dtype) == (p.out_shape, p.dtype)
        x, weight = (made[name].astype(np.float64) for name in ("x", "weight"))
        right = (x if x_layout == "rows_first" else x.T) @ (weight if weight_layout == "inner_first" else weight.T)
        tolerance = 2e-2 if "bfloat16" in (p.x_dtype, p.weight_dtype, p.dtype) else 1e-5
        np.testing.assert_allclose(np.asarray(out, np.float64), right, atol=tolerance * np.abs(right).max())
        computed += 1
    is_here = HAS_PAIRS if kernel.name == "matmul.cpu.dots" else why_no_native() is None
    if is_here and why_no_onednn("bfloat16") is None and (kernel.name != "matmul.cpu.dots" or dtype != "float32"):
        assert computed


CHOSEN = {
    "native": [
        problem(2048, 192, 320),
        problem(320, 2048, 192, x_layout="inner_first"),
        problem(2048, 192, 320, "bfloat16", weight_layout="outputs_first"),
        problem(2048, 192, 2048, "a wide cotangent", logits=True),
        problem(1024, 512, 512, purpose="prefill"),
    ],
    "onednn": [
        problem(40, 512, 512, weight_layout="outputs_first", purpose="decode"),
        problem(300, 512, 512, "bfloat16", weight_layout="outputs_first", purpose="prefill"),
        problem(4, 64, 512, "bfloat16", purpose="decode"),
        problem(4, 64, 512, "bfloat16 to float32", purpose="decode", logits=True),
    ],
    "few-rows": [
        problem(1, 512, 512, weight_layout="outputs_first", purpose="decode"),
        problem(16, 512, 512, weight_layout="outputs_first", purpose="decode"),
    ],
    "xla": [
        problem(64, 32, 32),
        problem(4, 512, 512, purpose="decode"),
        problem(40, 64, 64, weight_layout="outputs_first", purpose="decode"),
        dataclasses.replace(problem(2048, 192, 320), x_dtype="float16", weight_dtype="float16"),
    ],
}


#: bfloat16 of serving: by dot products of pairs where the processor has them, else by XLA.
IN_PAIRS = [
    problem(32, 512, 512, "bfloat16", weight_layout="outputs_first", purpose="decode"),
    problem(256, 512, 512, "bfloat16", weight_layout="outputs_first", purpose="prefill"),
    problem(8, 512, 4096, "bfloat16 to float32", weight_layout="outputs_first", purpose="decode", logits=True),
]


@HERE
def test_pairs_are_taken_for_servings_few_rows():
    wanted = "matmul.cpu.dots" if HAS_PAIRS else "matmul.cpu.few-rows"
    for p in IN_PAIRS:
        assert select(MATMUL, p).choice.kernel == wanted, p.describe()
    uneven = problem(32, 520, 512, "bfloat16", weight_layout="outputs_first", purpose="decode")
    assert select(MATMUL, uneven).choice.kernel == "matmul.cpu.few-rows"


@PAIRS
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dots_of_every_tail_and_of_many_items(dtype):
    """Rows and columns that fill no tile, several items, and a row's bits that no other row changes."""
    from kanawa_backends_cpu.kernels.matmul import native_dots

    rng = np.random.default_rng(0)
    for rows, inner, outputs in ((1, 32, 8), (2, 64, 9), (5, 96, 37), (7, 512, 300), (100, 160, 1000), (200, 32, 15)):
        x, weight = (jnp.asarray(rng.standard_normal((n, inner)), jnp.bfloat16) for n in (rows, outputs))
        out = native_dots.call(x, weight, dtype=dtype)
        assert (out.shape, out.dtype) == ((rows, outputs), dtype)
        right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
        relative, absolute = (2.0**-8, 1e-4) if dtype == jnp.bfloat16 else (1e-5, 2e-6 * inner**0.5)
        np.testing.assert_allclose(np.asarray(out, np.float64), right, rtol=relative, atol=absolute)
        assert np.array_equal(out[-1:], native_dots.call(x[-1:], weight, dtype=dtype))


@PAIRS
def test_dots_leave_what_is_not_finite_in_its_row_and_column():
    from kanawa_backends_cpu.kernels.matmul import native_dots

    x, weight = jnp.ones((4, 64), jnp.bfloat16).at[1, 3].set(jnp.nan), jnp.ones((24, 64), jnp.bfloat16)
    out = np.asarray(native_dots.call(x, weight.at[20, 60].set(jnp.inf), dtype=jnp.float32))
    assert np.isnan(out[1]).all() and np.isinf(out[[0, 2, 3], 20]).all()
    assert np.isfinite(np.delete(np.delete(out, 1, 0), 20, 1)).all()


@HERE
@pytest.mark.parametrize("name", CHOSEN)
def test_each_is_chosen_where_it_is_the_fastest(name):
    for p in CHOSEN[name]:
        assert select(MATMUL, p).choice.kernel.endswith(f".{name}"), p.describe()


@HERE
def test_decoding_prefers_weights_with_their_outputs_first():
    for dtype, width in itertools.product(("float32", "bfloat16"), (64, 512)):
        assert preferred_weight_layout(1, width, width, dtype=dtype, purpose="decode") == "outputs_first"
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert preferred_weight_layout(1, 512, 512, dtype="float32", purpose="decode") == "inner_first"


@HERE
def test_logits_of_a_tied_head_are_those_of_one_of_its_own():
    x, table = jnp.ones((2, 1, 64), jnp.bfloat16), jnp.ones((1024, 64), jnp.bfloat16)
    with use_plan(ExecutionPlan(purpose="decode")):
        tied = matmul(x, table, outputs_first=True, dtype=jnp.float32, logits=True)
        untied = matmul(x, table.T, dtype=jnp.float32, logits=True)
    assert tied.dtype == jnp.float32 and np.array_equal(tied, np.full((2, 1, 1024), 64.0))
    assert np.array_equal(tied, untied)


@HERE
@pytest.mark.parametrize("tied", [False, True])
def test_logits_and_their_gradients_are_native_calls(tied):
    rng = np.random.default_rng(7)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    hidden, weight, weights = normal(1024, 512), normal(256, 512) if tied else normal(512, 256), jnp.ones(1024)
    targets = (jnp.arange(1024, dtype=jnp.int32) * 7) % 256

    def gradients(plan):
        def loss(hidden, weight):
            return softmax_cross_entropy(hidden, weight, targets, weights, tied=tied)[0]

        with use_plan(plan):
            lowered = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, weight)
            return lowered.as_text().count("custom_call @kanawa_matmul"), lowered.compile()(hidden, weight)

    calls, ours = gradients(ExecutionPlan())
    none, right = gradients(ExecutionPlan(kernels=KernelPolicy(pins=(("matmul", "matmul.any.xla"),))))
    assert (calls, none) == (3, 0)
    for mine, want in zip(ours, right, strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-3, atol=1e-4)
