"""This project's GPU kernels against what users have: ragged_dot, the copy bandwidth, bf16 matmuls, in one run.

Run on an NVIDIA GPU: `python benchmarks/gpu_kernels.py [--out FILE] [--only paged]`. Elsewhere it
ends with exit code 2; `--interpret` runs tiny shapes in Pallas's interpreter there, to try the script, without times.
Never run on hardware so far.
"""

import argparse
import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.custom_gradient import call
from kanawa.kernels.grouped_matmul import GroupedMatmulProblem
from kanawa.kernels.masks import CAUSAL
from kanawa.kernels.number_formats import format_named, quantize_lhs, quantize_rhs
from kanawa.kernels.operation import Kernel
from kanawa.kernels.quantized_matmul import QuantizedMatmulProblem
from kanawa_backends_gpu.kernels.attention.cached import PagedAttention
from kanawa_backends_gpu.kernels.grouped_matmul.triton import TritonGroupedMatmul
from kanawa_backends_gpu.kernels.quantized_matmul.weights import QuantizedWeightMatmul
from kanawa_backends_gpu.kernels.quantized_matmul.xla import XlaQuantizedMatmul
from kanawa_kernel_tools.examples.attention import example_operands
from on_gpu import gpu_or_exit, report, seconds

Timer = Callable[[Callable[[], Any]], float]


def made(kernel: type[Kernel], interpret: bool) -> Kernel:
    """Returns the kernel, in Pallas's interpreter where asked for."""
    return type(kernel.__name__, (kernel,), {"interpret": True})() if interpret else kernel()


def grouped(small: bool, timer: Timer) -> list[dict[str, Any]]:
    """Compares forward, and forward with backward, to jax.lax.ragged_dot; groups of uneven sizes."""
    shapes = [(256, 64, 32, 4)] if small else [(65536, 4096, 1536, 16), (65536, 2048, 768, 128), (512, 2048, 768, 128)]
    rows_of = []
    for rows, inner, columns, groups in shapes:
        problem = GroupedMatmulProblem(
            rows=rows, inner=inner, columns=columns, groups=groups, dtype="bfloat16", rhs_dtype="bfloat16"
        )
        rng = np.random.default_rng(0)
        # As a router leaves them: some experts get three times what others get.
        share = rng.dirichlet(np.full(groups, 8.0))
        sizes = np.floor(share * rows).astype(np.int32)
        keys = jax.random.split(jax.random.key(0), 2)
        lhs = jax.random.normal(keys[0], (rows, inner), jnp.bfloat16)
        rhs = jax.random.normal(keys[1], (groups, inner, columns), jnp.bfloat16)
        kernel = made(TritonGroupedMatmul, small)

        def ours(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, kernel: Kernel = kernel, p: Any = problem) -> Any:
            return call(kernel, p, {"lhs": lhs, "rhs": rhs, "group_sizes": sizes})

        flops = 2.0 * float(sizes.sum()) * inner * columns
        row: dict[str, Any] = {"problem": problem.describe()}
        for name, product in (("ours", ours), ("ragged_dot", jax.lax.ragged_dot)):
            forward, both = jax.jit(product), jax.jit(_with_gradients(product))
            row[f"{name}_forward_tflops"] = flops / timer(functools.partial(forward, lhs, rhs, sizes)) / 1e12
            row[f"{name}_both_tflops"] = 3 * flops / timer(functools.partial(both, lhs, rhs, sizes)) / 1e12
        row["forward_ratio"] = row["ours_forward_tflops"] / row["ragged_dot_forward_tflops"]
        row["both_ratio"] = row["ours_both_tflops"] / row["ragged_dot_both_tflops"]
        rows_of.append(row)
    return rows_of


def _with_gradients(product: Callable[..., jax.Array]) -> Callable[..., Any]:
    def both(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> Any:
        out, pull = jax.vjp(lambda lhs, rhs: product(lhs, rhs, sizes), lhs, rhs)
        return out, *pull(jnp.ones_like(out))

    return both


def paged(small: bool, timer: Timer) -> list[dict[str, Any]]:
    """Measures decoding over pages in bytes of keys and values a second, beside a copy's bytes read and written."""
    base = AttentionProblem(
        batch=2, q_length=1, kv_length=64, num_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype="bfloat16",
        mask=CAUSAL, scale=0.1, mode="decode", has_kv_lengths=True, page_size=16,
    )  # fmt: skip
    large = dataclasses.replace(base, num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
    changes = [{"batch": 32, "kv_length": 8192}, {"batch": 1, "kv_length": 131072}, {"batch": 128, "kv_length": 4096}]
    problems = [base] if small else [dataclasses.replace(large, **change) for change in changes]
    source = jnp.zeros((2**12 if small else 2**31,), jnp.bfloat16)
    copied = jax.jit(lambda x: x + 1)
    copy = 2 * source.nbytes / timer(lambda: copied(source)) / 1e9
    rows = []
    for problem in problems:
        kernel = made(PagedAttention, small)
        operands = jax.device_put(example_operands(problem, np.random.default_rng(0)))
        operands["kv_lengths"] = jnp.full_like(operands["kv_lengths"], problem.kv_length)
        run = jax.jit(functools.partial(kernel.apply, problem))
        read = operands["k"].nbytes + operands["v"].nbytes
        rate = read / timer(functools.partial(run, operands)) / 1e9
        rows.append({"problem": problem.describe(), "gb_per_s": rate, "copy_gb_per_s": copy, "ratio": rate / copy})
    return rows


def quantized(small: bool, timer: Timer) -> list[dict[str, Any]]:
    """Compares eight-bit products and four-bit weights to the same product in bf16."""
    inner, columns = (128, 64) if small else (4096, 14336)
    many, few = (8, 2) if small else (8192, 16)
    cases = [
        (XlaQuantizedMatmul, many, "float8_e4m3fn", "float8_e4m3fn", 1),
        (XlaQuantizedMatmul, many, "int8", "int8", 1),
        (XlaQuantizedMatmul, few, "bfloat16", "int8", 1),
        (QuantizedWeightMatmul, few, "bfloat16", "int4", inner // 64),
        (QuantizedWeightMatmul, few, "bfloat16", "nf4", inner // 64),
    ]
    results = []
    for kind, rows, left, right, groups in cases:
        problem = QuantizedMatmulProblem(
            lhs_shape=(rows, inner), rhs_shape=(inner, columns), num_contracted=1, groups=groups, lhs_format=left,
            rhs_format=right, dtype="bfloat16",
        )  # fmt: skip
        keys = jax.random.split(jax.random.key(0), 2)
        lhs = jax.random.normal(keys[0], (rows, inner), jnp.bfloat16)
        weight = jax.random.normal(keys[1], (inner, columns), jnp.bfloat16)
        kept, scale = quantize_rhs(weight, format_named(right), 1, groups)
        operands: dict[str, Any] = {"lhs": lhs, "rhs": kept, "rhs_scale": scale}
        if left != "bfloat16":
            operands["lhs"], operands["lhs_scale"] = quantize_lhs(lhs, format_named(left), 1)
        kernel = kind() if kind is XlaQuantizedMatmul else made(kind, small)
        run = jax.jit(functools.partial(kernel.apply, problem))
        plain = jax.jit(jnp.dot)
        ours, theirs = timer(functools.partial(run, operands)), timer(functools.partial(plain, lhs, weight))
        results.append(
            {
                "problem": problem.describe(),
                "kernel": kernel.name,
                "tflops": 2.0 * math.prod((rows, inner, columns)) / ours / 1e12,
                "kept_gb_per_s": kept.nbytes / ours / 1e9,
                "bf16_seconds": theirs,
                "times_faster_than_bf16": theirs / ours,
            }
        )
    return results


PARTS = {"grouped_matmul": grouped, "paged": paged, "quantized_matmul": quantized}


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="parts to run; all by default")
    parser.add_argument("--interpret", action="store_true", help="tiny shapes without a GPU; no times")
    parser.add_argument("--out", type=Path, help="file to write the JSON to")
    args = parser.parse_args()

    def once(call: Callable[[], Any]) -> float:
        jax.block_until_ready(call())
        return math.nan

    if not args.interpret:
        gpu_or_exit("gpu_kernels.py", "`--interpret` tries the script without one.")
    timer = once if args.interpret else seconds
    names = args.only or list(PARTS)
    report({"interpreted": args.interpret, **{name: PARTS[name](args.interpret, timer) for name in names}}, args.out)


if __name__ == "__main__":
    main()
