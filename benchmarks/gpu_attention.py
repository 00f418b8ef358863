"""Attention forward and backward on one GPU in TFLOP/s: Kanawa's kernels, `jax.nn` with cuDNN, PyTorch's SDPA.

    python benchmarks/gpu_attention.py [--lengths 4096,8192] [--head-dims 64,128,256] [--kernels NAME,…] [--json FILE]

Causal, bf16, one GPU, 16,384 tokens a call, 2,048 numbers over all query heads, four query heads a key head; `packed`
rows hold documents of 1/8 of the row on average. FLOPs are those of the scores that the mask leaves, seven products
(two forward, five backward), whatever a kernel recomputes. What refuses a case or fails in it says so in its place.
Without a GPU it ends with 2; `--interpret` tries tiny shapes in Pallas's interpreter, whose times mean nothing.

Never run on hardware so far.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.kernels import CAUSAL, MaskSpec
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.operation import Kernel
from on_gpu import NO_GPU

TOKENS, WIDTH, GROUP = 16384, 2048, 4
#: Every part of a step that multiplies matrices: two products forward, five backward.
PRODUCTS = 7


@dataclass(frozen=True)
class Case:
    """A length, a head's width, and whether rows hold several documents."""

    length: int
    head_dim: int
    packed: bool

    def problem(self, tokens: int = TOKENS, width: int = WIDTH) -> AttentionProblem:
        """Returns the attention problem."""
        heads = max(GROUP, width // self.head_dim)
        return AttentionProblem(
            batch=max(1, tokens // self.length),
            q_length=self.length,
            kv_length=self.length,
            num_heads=heads,
            num_kv_heads=heads // GROUP,
            head_dim=self.head_dim,
            v_head_dim=self.head_dim,
            dtype="bfloat16",
            mask=CAUSAL & MaskSpec(segments=True) if self.packed else CAUSAL,
            scale=self.head_dim**-0.5,
        )


def documents(rows: int, length: int) -> np.ndarray:
    """Returns segment ids [rows, length] of documents cut at random places, eight a row on average."""
    cuts = np.random.default_rng(0).random((rows, length)) < 8 / length
    return (np.cumsum(cuts, axis=1) + 1).astype(np.int32)


def arrays(problem: AttentionProblem) -> dict[str, jax.Array]:
    """Returns q, k, v, dout and, for packed rows, segment ids."""
    rng = np.random.default_rng(0)
    heads = {"q": problem.num_heads, "k": problem.num_kv_heads, "v": problem.num_kv_heads, "dout": problem.num_heads}
    shape = (problem.batch, problem.q_length)
    made = {n: jnp.asarray(rng.standard_normal((*shape, h, problem.head_dim)), jnp.bfloat16) for n, h in heads.items()}
    if problem.has_segments:
        ids = jnp.asarray(documents(*shape))
        made |= {"q_segment_ids": ids, "kv_segment_ids": ids}
    return made


def flops(problem: AttentionProblem, given: dict[str, jax.Array]) -> float:
    """Returns the FLOPs of forward and backward."""
    pairs = problem.batch * problem.pairs
    if problem.has_segments:
        sizes = [np.unique(row, return_counts=True)[1].astype(float) for row in np.asarray(given["q_segment_ids"])]
        pairs = sum(float(np.sum(n * (n + 1) / 2)) for n in sizes)
    return PRODUCTS * 2.0 * pairs * problem.num_heads * problem.head_dim


def seconds(step: Callable[[], Any], repeats: int) -> float:
    """Returns the median time of a call after two to warm up; `step` waits for its result."""
    for _ in range(2):
        step()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return median(taken)


def kanawa_step(kernel: Kernel, problem: AttentionProblem, given: dict[str, jax.Array]) -> Callable[[], Any]:
    """Returns forward and backward by one of Kanawa's kernels."""
    operands = {name: x for name, x in given.items() if name != "dout"}

    @jax.jit
    def both(operands: dict[str, jax.Array], dout: jax.Array) -> Any:
        out, residuals = kernel.forward(problem, operands)
        return out, kernel.backward(problem, operands, out, residuals, dout)

    return lambda: jax.block_until_ready(both(operands, given["dout"]))


def jax_step(problem: AttentionProblem, given: dict[str, jax.Array]) -> Callable[[], Any]:
    """Returns `jax.nn.dot_product_attention` by cuDNN; packed rows need its dense mask."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        mask = None
        if problem.has_segments:
            ids = given["q_segment_ids"]
            mask = ids[:, None, :, None] == ids[:, None, None, :]
        return jax.nn.dot_product_attention(
            q, k, v, mask=mask, is_causal=True, scale=problem.scale, implementation="cudnn"
        )

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array) -> Any:
        out, pullback = jax.vjp(attend, q, k, v)
        return out, pullback(dout)

    return lambda: jax.block_until_ready(both(*(given[name] for name in ("q", "k", "v", "dout"))))


def torch_step(problem: AttentionProblem, given: dict[str, jax.Array]) -> Callable[[], Any]:
    """Returns PyTorch's scaled_dot_product_attention on the same GPU; packed rows need its dense mask."""
    import torch

    def moved(name: str) -> Any:
        x = torch.from_numpy(np.asarray(given[name], np.float32)).to("cuda", torch.bfloat16)
        return x.transpose(1, 2).contiguous()

    q, k, v, dout = (moved(name) for name in ("q", "k", "v", "dout"))
    for x in (q, k, v):
        x.requires_grad_()
    options: dict[str, Any] = {"is_causal": True}
    if problem.has_segments:
        ids = torch.from_numpy(np.asarray(given["q_segment_ids"])).to("cuda")
        length = problem.q_length
        causal = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
        options = {"attn_mask": (ids[:, None, :, None] == ids[:, None, None, :]) & causal}

    def step() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=problem.scale, enable_gqa=True, **options)
        torch.autograd.grad(out, (q, k, v), dout)
        torch.cuda.synchronize()

    return step


def contenders(names: list[str], interpret: bool) -> dict[str, Callable[..., Callable[[], Any]]]:
    """Returns makers of steps by name."""
    from kanawa.plugins import component

    made: dict[str, Callable[..., Callable[[], Any]]] = {}
    for name in names:
        kind = component("kernels", name)
        kernel = type(kind.__name__, (kind,), {"interpret": True})() if interpret else kind()

        def step(problem: AttentionProblem, given: Any, kernel: Kernel = kernel) -> Callable[[], Any]:
            verdict = kernel.supports(problem, None)
            if not verdict:
                raise NotImplementedError(verdict.reason)
            return kanawa_step(kernel, problem, given)

        made[name] = step
    if not interpret:
        made["jax.nn cudnn"] = jax_step
        made["torch sdpa"] = torch_step
    return made


def measured(make: Callable[..., Callable[[], Any]], case: Case, interpret: bool) -> dict[str, Any]:
    """Returns the TFLOP/s of one contender in one case, or why there are none."""
    problem = case.problem(tokens=2 * case.length, width=64) if interpret else case.problem()
    if interpret:
        problem = replace(problem, num_heads=2, num_kv_heads=1)
    try:
        given = arrays(problem)
        taken = seconds(make(problem, given), repeats=1 if interpret else 10)
    except Exception as error:  # noqa: BLE001 (a contender that can't is a result too)
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return {"seconds": taken, "tflops": flops(problem, given) / taken / 1e12}


def versions() -> dict[str, str]:
    """Returns what the figures depend on."""
    told = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
    try:
        import torch
    except ImportError:
        return told
    return told | {"torch": torch.__version__}


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options."""
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=numbers, default=[4096, 8192, 16384, 32768])
    parser.add_argument("--head-dims", type=numbers, default=[64, 128, 256])
    names = "attention.gpu.cudnn,attention.gpu.pallas,attention.gpu.cudnn-packed"
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=names.split(","))
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--interpret", action="store_true", help="tiny shapes without a GPU, to try the program")
    options = parser.parse_args(arguments)
    if options.interpret:
        options.lengths, options.head_dims, options.kernels = [64], [16], ["attention.gpu.pallas"]
    return options


def main(arguments: list[str] | None = None) -> int:
    """Prints a line a case and contender; returns the exit code."""
    options = parsed(arguments)
    say = sys.stdout.write
    if jax.default_backend() != "gpu" and not options.interpret:
        sys.stderr.write(
            f"gpu_attention needs an NVIDIA GPU and jax[cuda13]: JAX is on {jax.default_backend()!r} here; "
            f"--interpret tries it on tiny shapes\n"
        )
        return NO_GPU
    told = versions()
    say(", ".join(f"{name} {value}" for name, value in told.items()) + "\n")
    records = []
    for packed in (False, True):
        for head_dim in options.head_dims:
            for length in options.lengths:
                case = Case(length, head_dim, packed)
                for name, make in contenders(options.kernels, options.interpret).items():
                    result = measured(make, case, options.interpret)
                    records.append({"length": length, "head_dim": head_dim, "packed": packed, "kernel": name, **result})
                    shown = result.get("failed") or f"{result['tflops']:.1f} TFLOP/s"
                    say(f"{length:6d} x {head_dim:3d} {'packed' if packed else 'whole ':6s} {name:28s} {shown}\n")
                    sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps({"versions": told, "records": records}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
