"""attention.gpu.pallas: flash attention in Pallas on Triton, forward and backward, for what cuDNN refuses.

Takes every mask, bias, sinks, logit caps, heads up to 256 wide, and lengths that don't divide. Compiled for H100 and
B200, run in Pallas's interpreter, never on a GPU.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from kanawa.kernels.attention.dropout import row_words
from kanawa.kernels.attention.gradient import row_delta, sinks_gradient
from kanawa.kernels.attention.operands import kv_positions, q_positions
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.masks import FULL
from kanawa.kernels.operation import Kernel, Operands, Tuning
from kanawa.kernels.verdict import Verdict, first_refusal
from kanawa.plugins import DeviceSpec

from kanawa_backends_gpu.kernels.attention.flash import forward, gradients
from kanawa_backends_gpu.kernels.attention.flash.sizes import WIDEST, Size, size_of, tunings
from kanawa_backends_gpu.kernels.attention.flash.tile import LOG2_E, Tiles
from kanawa_backends_gpu.kernels.attention.flash.visits import Visits, as_jax, block_map, transposed, visits
from kanawa_backends_gpu.kernels.triton_tiles import NARROWEST, unfit_predicates

_DTYPES = ("bfloat16", "float16", "float32")
#: Fewer queries fill no tile: keys are then best read once, by many programs.
_FEW = 64


class PallasAttention(Kernel):
    """Training and prefill over dense keys: any mask, bias, sinks, cap, GQA without repeated keys, heads up to 256."""

    name: ClassVar[str] = "attention.gpu.pallas"
    #: Under cuDNN's, above the streamed pass over a cache.
    priority: ClassVar[int] = 7
    fused: ClassVar[bool] = True
    local: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout"})
    #: Backward does the scores again in each of its kernels.
    compiled_calls: ClassVar[tuple[tuple[str, float], ...]] = (
        (r"flash_attention_keys", 4),
        (r"flash_attention_queries", 3),
        (r"flash_attention_bias", 2),
        (r"flash_attention_forward", 2),
    )
    #: Pallas's interpreter instead of a GPU: for tests.
    interpret: ClassVar[bool] = False

    def supports(self, problem: AttentionProblem, device: DeviceSpec | None) -> Verdict:
        """Returns support, or what the problem has that the kernel doesn't."""
        width = max(problem.head_dim, problem.v_head_dim)
        predicates = unfit_predicates(problem.mask)
        return first_refusal(
            (problem.paged, "keys lie in pages; it takes rows"),
            (
                problem.mode != "train" and problem.q_length < _FEW,
                f"{problem.q_length} queries leave a tile of them empty; attention.gpu.decode is for few",
            ),
            (problem.dtype not in _DTYPES, f"dtype {problem.dtype}; needs {' or '.join(_DTYPES)}"),
            (width > WIDEST, f"heads of {width}; a program's registers hold up to {WIDEST}"),
            (bool(predicates), predicates),
        )

    def forward(self, problem: AttentionProblem, operands: Operands) -> tuple[jax.Array, jax.Array]:
        """Returns out [B, T, H, Dv] in q's dtype and the log-sum-exp, fp32 [B, H, T], sinks included."""
        p, dense = _prepared(problem, operands)
        tiles, size = self._tiles(p, "forward")
        visited = _visits(tiles, dense, by_keys=False)
        shapes = ((*dense["q"].shape[:3], p.v_head_dim), p.dtype), ((p.batch, p.num_heads, p.q_length), "float32")
        kernel = functools.partial(forward.forward, tiles=tiles, visited=visited)
        call = self._call(kernel, "forward", forward.grid(tiles), size, shapes)
        out, lse = call(dense | visited.arrays)
        return out[..., : problem.v_head_dim], lse

    def backward(
        self,
        problem: AttentionProblem,
        operands: Operands,
        out: jax.Array,
        residuals: jax.Array,
        cotangents: jax.Array,
    ) -> dict[str, jax.Array]:
        """Returns cotangents of q, k, v, bias and sinks from out and a log-sum-exp, maybe over more keys."""
        p, dense = _prepared(problem, operands)
        delta = row_delta(out, cotangents)
        # The weights of a query without keys are 0: exp2(score - inf).
        lse = jnp.where(jnp.isneginf(residuals), jnp.inf, residuals * LOG2_E)
        dense |= {"lse": lse, "delta": delta, "dout": _widened(cotangents.astype(p.dtype))}
        dense.pop("sinks", None)
        grads = self._gradients(p, dense)
        widths = {"q": problem.head_dim, "k": problem.head_dim, "v": problem.v_head_dim}
        grads |= {name: grads[name][..., :width] for name, width in widths.items()}
        if p.has_sinks:
            grads["sinks"] = sinks_gradient(operands["sinks"], residuals, delta)
        return grads

    def _gradients(self, p: AttentionProblem, dense: dict[str, Any]) -> dict[str, jax.Array]:
        tiles, size = self._tiles(p, "queries")
        visited = _visits(tiles, dense, by_keys=False)
        kernel = functools.partial(gradients.query_gradient, tiles=tiles, visited=visited)
        call = self._call(kernel, "queries", forward.grid(tiles), size, (_like(dense["q"]),))
        grads = {"q": call(dense | visited.arrays)[0]}
        if p.has_bias:
            spans = _visits(tiles, dense, by_keys=False, listed=False)
            kernel = functools.partial(gradients.bias_gradient, tiles=tiles)
            call = self._call(kernel, "bias", gradients.bias_grid(tiles), size, (_like(dense["bias"]),))
            grads["bias"] = call(dense | spans.arrays)[0]
        tiles, size = self._tiles(p, "keys")
        visited = _visits(tiles, dense, by_keys=True)
        kernel = functools.partial(gradients.key_gradient, tiles=tiles, visited=visited)
        shapes = (_like(dense["k"]), _like(dense["v"]))
        call = self._call(kernel, "keys", (tiles.key_blocks, p.num_kv_heads, p.batch), size, shapes)
        grads["k"], grads["v"] = call(dense | visited.arrays)
        return grads

    def tunings(self, problem: AttentionProblem, device: DeviceSpec | None) -> tuple[Tuning, ...]:
        """Returns other tiles of the forward kernel and, where it is differentiated, of the other two."""
        return tunings(problem, device)

    def _tiles(self, problem: AttentionProblem, kernel: str) -> tuple[Tiles, Size]:
        size = size_of(self, problem, kernel)
        return Tiles(problem, size.queries, size.keys), size

    def _call(
        self, kernel: Callable[..., None], name: str, grid: tuple[int, ...], size: Size, shapes: tuple[Any, ...]
    ) -> Callable[..., Any]:
        return pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes],
            grid=grid,
            compiler_params=plgpu.CompilerParams(num_warps=size.warps, num_stages=size.stages),
            interpret=self.interpret,
            name=f"flash_attention_{name}",
        )


def _prepared(problem: AttentionProblem, operands: Operands) -> tuple[AttentionProblem, dict[str, Any]]:
    """Returns both with heads as wide as the matrix units need, and with positions where they aren't 0, 1, 2, …"""
    left_out = ("q_positions", "kv_positions", "dropout_key", "dropout_queries", "dropout_heads")
    dense = {name: x for name, x in operands.items() if name not in left_out}
    if problem.dropout_rate:
        dense["drop_first"], dense["drop_second"] = row_words(operands)
    dense |= {name: _widened(dense[name]) for name in "qkv"}
    if problem.has_q_positions or problem.has_kv_lengths:
        dense["q_positions"] = q_positions(problem, operands)
    if problem.has_kv_positions:
        dense["kv_positions"] = kv_positions(problem, operands)
    widths = {"head_dim": dense["q"].shape[-1], "v_head_dim": dense["v"].shape[-1]}
    return dataclasses.replace(problem, **widths), dense


def _widened(x: jax.Array) -> jax.Array:
    """Returns [B, L, H, D] with zeros up to the next width that the matrix units take."""
    missing = -x.shape[-1] % NARROWEST
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x


def _visits(tiles: Tiles, operands: Operands, *, by_keys: bool, listed: bool = True) -> Visits:
    blocks = block_map(tiles.problem, operands, tiles.queries, tiles.keys)
    mask = tiles.problem.mask if listed else FULL
    return as_jax(visits(transposed(blocks) if by_keys else blocks, mask))


def _like(x: jax.Array) -> tuple[tuple[int, ...], Any]:
    return x.shape, x.dtype
