"""Splash in Pallas's interpreter against core's reference, and what it refuses."""

import dataclasses
import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kanawa.kernels.attention.problem import AttentionProblem
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.masks import CAUSAL, FULL, MaskSpec, sliding_window
from kanawa.kernels.operation import Kernel
from kanawa_backends_tpu.kernels.attention.splash import SplashAttention
from kanawa_backends_tpu.kernels.attention.splash import _blocks as blocks_of
from kanawa_backends_tpu.kernels.attention.splash_masks import splash_mask


class Interpreted(SplashAttention):
    """The same kernel without a TPU, in blocks small enough that there are several."""

    largest_block: ClassVar[int] = 128
    interpret: ClassVar[bool] = True


PLAIN = AttentionProblem(
    batch=1,
    q_length=256,
    kv_length=256,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    v_head_dim=64,
    dtype="float32",
    mask=CAUSAL,
    scale=0.11,
)
CASES = {
    "packed": {"mask": MaskSpec(causal=True, segments=True), "batch": 2},
    "window, sinks and cap": {"mask": sliding_window(100), "has_sinks": True, "logit_cap": 5.0},
    "full, more keys, wide bfloat16": {
        **{"mask": FULL, "kv_length": 384, "dtype": "bfloat16"},
        **{"head_dim": 192, "v_head_dim": 128},
    },
}
MASKS = {
    "full": FULL,
    "causal": CAUSAL,
    "sliding": sliding_window(100),
    "two-sided": MaskSpec(window=(30, 70)),
    "open to the left": MaskSpec(window=(None, 5)),
    "open to the right": MaskSpec(window=(5, None)),
    "chunk": MaskSpec(causal=True, chunk=96),
    "segments are operands": MaskSpec(causal=True, segments=True),
}


def operands_of(problem: AttentionProblem) -> dict[str, Any]:
    random = np.random.default_rng(0)
    b, t, s = problem.batch, problem.q_length, problem.kv_length
    shapes = {
        "q": (b, t, problem.num_heads, problem.head_dim),
        "k": (b, s, problem.num_kv_heads, problem.head_dim),
        "v": (b, s, problem.num_kv_heads, problem.v_head_dim),
    }
    operands = {name: random.normal(size=shape).astype(problem.dtype) for name, shape in shapes.items()}
    if problem.has_segments:
        ends = np.array([[90, 200], [10, 256]])
        ids = 1 + np.sum(np.arange(t)[None, :, None] >= ends[:, None], axis=-1, dtype=np.int32)
        operands |= {"q_segment_ids": ids, "kv_segment_ids": ids}
    if problem.has_sinks:
        operands["sinks"] = random.normal(size=(problem.num_heads,)).astype(np.float32)
    return {name: jnp.asarray(x) for name, x in operands.items()}


def gradients(
    kernel: Kernel, problem: AttentionProblem, operands: dict[str, Any]
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """Returns out, log-sum-exp and cotangents for a cotangent that depends on out."""

    @jax.jit
    def run(operands: dict[str, Any]) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        out, lse = kernel.forward(problem, operands)
        dout = jnp.cos(3 * out)
        return out, lse, kernel.backward(problem, operands, out, lse, dout)

    return run(operands)


def close(found: jax.Array, wanted: jax.Array, dtype: str) -> None:
    tolerance = 2e-5 if dtype == "float32" else 4e-2
    found, wanted = np.asarray(found, np.float32), np.asarray(wanted, np.float32)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("case", CASES)
def test_against_the_reference(case):
    problem = dataclasses.replace(PLAIN, **CASES[case])
    assert Interpreted().supports(problem, None)
    operands = operands_of(problem)
    out, lse, grads = gradients(Interpreted(), problem, operands)
    wanted, wanted_lse, expected = gradients(ReferenceAttention(), problem, operands)
    assert (out.dtype, lse.dtype) == (wanted.dtype, jnp.float32)
    close(out, wanted, problem.dtype)
    close(lse, wanted_lse, problem.dtype)
    assert set(grads) == set(expected)
    for name, grad in grads.items():
        close(grad, expected[name], problem.dtype)


def test_a_block_whose_scores_are_computed_in_two_halves():
    """As on a TPU at 4,096 tokens, where a block is 1,024 keys; here it is all there are."""

    class Whole(Interpreted):
        largest_block: ClassVar[int] = 1024

    problem = dataclasses.replace(PLAIN, q_length=1024, kv_length=1024, num_heads=1)
    assert blocks_of(problem, 1024).block_kv_dkv_compute == 512
    operands = operands_of(problem)
    _, _, grads = gradients(Whole(), problem, operands)
    _, _, expected = gradients(ReferenceAttention(), problem, operands)
    for name, grad in grads.items():
        close(grad, expected[name], problem.dtype)


TRAINED = {"q_length": 4096, "kv_length": 4096, "head_dim": 128, "v_head_dim": 128, "dtype": "bfloat16"}
#: What differs from a Llama's training: (keys of a block, those computed at a time).
BLOCKS = {
    "llama": ({}, (1024, 512)),
    "fp32": ({"dtype": "float32"}, (512, 512)),
    "wide heads": ({"head_dim": 256, "v_head_dim": 256}, (512, 512)),
    "sliding window": ({"mask": sliding_window(1024)}, (512, 512)),
    "longer rows": ({"q_length": 8192, "kv_length": 8192}, (1024, 512)),
    "no power of two": ({"q_length": 1920, "kv_length": 1920}, (640, 640)),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_fit_heads_masks_and_lengths(case):
    changed, wanted = BLOCKS[case]
    sizes = blocks_of(dataclasses.replace(PLAIN, **{**TRAINED, **changed}), SplashAttention.largest_block)
    assert (sizes.block_kv_dkv, sizes.block_kv_dkv_compute) == wanted
    assert sizes.block_kv_dq == sizes.block_kv_compute == wanted[1]


@pytest.mark.parametrize("name", MASKS)
def test_masks_mean_what_the_references_do(name):
    problem = dataclasses.replace(PLAIN, mask=MASKS[name])
    assert SplashAttention().supports(problem, None)
    position = jnp.arange(256)
    wanted = MASKS[name].without_segments.allowed(position, position)
    wanted = np.ones((256, 256), bool) if wanted is None else np.asarray(wanted)
    found, wanted = splash_mask(problem.mask, (256, 256)), wanted.reshape(256, 256)
    # Whole, in the blocks and in the columns that splash looks at.
    for q, k in ((256, 256), (64, 32), (128, 128), (256, 1)):
        for rows in range(0, 256, q):
            for keys in range(0, 256, k):
                part = slice(rows, rows + q), slice(keys, keys + k)
                np.testing.assert_array_equal(np.broadcast_to(found[part], (q, k)), wanted[part])


def test_a_long_mask_is_looked_at_without_all_of_its_elements():
    """Splash looks at each column: with a mask of JAX's own this took ten seconds, not the half one that it takes."""
    length, begin = 32768, time.process_time()
    mask = splash_mask(sliding_window(1024), (length, length))
    assert all(mask[slice(0, length), slice(key, key + 1)].shape == (length, 1) for key in range(0, length, 8))
    assert time.process_time() - begin < 1.0


def test_backward_for_a_part_of_the_keys():
    """As ring attention calls it: out and log-sum-exp of all keys, gradient for half of them."""
    whole = dataclasses.replace(PLAIN, mask=FULL)
    half = dataclasses.replace(whole, kv_length=128)
    kernel, reference, operands = Interpreted(), ReferenceAttention(), operands_of(whole)
    out, lse, expected = gradients(reference, whole, operands)
    first = operands | {"k": operands["k"][:, :128], "v": operands["v"][:, :128]}
    grads = jax.jit(lambda o: kernel.backward(half, o, out, lse, jnp.cos(3 * out)))(first)
    close(grads["k"], expected["k"][:, :128], "float32")
    close(grads["v"], expected["v"][:, :128], "float32")


REFUSALS = {
    "in pages": {"page_size": 16},
    "dense bias": {"bias_shape": (1, 2, 256, 256)},
    "mask has prefix": {"mask": MaskSpec(causal=True, prefix=True)},
    "chunk only as": {"mask": MaskSpec(chunk=64)},
    "positions or lengths": {"has_q_positions": True},
    "dtype float16": {"dtype": "float16"},
    "q_length 1 isn't": {"q_length": 1, "mode": "decode"},
    "kv_length 200 isn't": {"kv_length": 200},
    "see no key": {"q_length": 512, "mask": sliding_window(8)},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_say_why(reason):
    problem = dataclasses.replace(PLAIN, **REFUSALS[reason])
    verdict = SplashAttention().supports(problem, None)
    assert not verdict
    assert reason in verdict.reason
