"""A kernel that knows causality alone is right for every mask, with the dense rest that core gives it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import pytest
from kanawa.kernels import Kernel, MaskSpec, Verdict
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.attention.split_mask import bias_cotangent, rest_in_bias, seen_rows, split_mask
from kanawa.testing.compare import compare_with_reference
from kanawa_kernel_tools.examples.attention import BASE

SMALL = dataclasses.replace(BASE, q_length=12, kv_length=12, head_dim=8, v_head_dim=8)


class CausalAlone(Kernel):
    """The reference, asked with a causal mask or none: all else is in the bias."""

    name: ClassVar[str] = "attention.cpu.causal_alone"
    operation: ClassVar[str] = "attention"
    takes: ClassVar[frozenset[str]] = frozenset({"alibi", "dropout"})

    def supports(self, problem, device):
        return Verdict(ok=True)

    def parts(self, problem, operands):
        mine, rest = split_mask(problem, ("causal",))
        bias = rest_in_bias(problem, operands, rest, kv_lengths=True)
        operands = dict(operands) if bias is None else {**operands, "bias": bias}
        return dataclasses.replace(mine, bias_shape=None if bias is None else bias.shape), operands

    def forward(self, problem, operands):
        mine, mixed = self.parts(problem, operands)
        out, lse = ReferenceAttention().forward(mine, mixed)
        seen = seen_rows(problem, operands)
        if seen is None:
            return out, lse
        lse = jnp.where(seen[:, None], lse, -jnp.inf)
        return jnp.where(seen[:, :, None, None], out, jnp.zeros((), out.dtype)), lse

    def backward(self, problem, operands, out, residuals, cotangents):
        mine, mixed = self.parts(problem, operands)
        grads = ReferenceAttention().backward(mine, mixed, out, residuals, cotangents)
        dbias = grads.pop("bias", None)
        if problem.has_bias:
            grads["bias"] = bias_cotangent(problem, dbias)
        return grads


CHANGES = {
    "window, segments, bias": {
        "mask": MaskSpec(causal=True, window=(4, None), segments=True),
        "bias_shape": (1, 4, 1, 12),
    },
    "prefix, two-sided, positions": {
        "mask": MaskSpec(window=(2, 3), prefix=True),
        "has_q_positions": True,
        "has_kv_positions": True,
        "q_length": 7,
    },
    "lengths, chunk": {"mask": MaskSpec(chunk=5), "has_kv_lengths": True, "mode": "prefill"},
}


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=() if "window" in name else pytest.mark.nightly) for name in CHANGES]
)
def test_native_part_and_dense_rest_are_the_mask(change):
    (agreement,) = compare_with_reference(CausalAlone(), [dataclasses.replace(SMALL, **CHANGES[change])])
    assert agreement.errors and agreement.ok, agreement.describe()
