"""The batched matmuls of attention, by native functions or oneDNN where those are faster than XLA."""

import functools

import jax
import jax.numpy as jnp
from kanawa.kernels.platform import mesh_error, runs_here

from kanawa_backends_cpu import onednn
from kanawa_backends_cpu.kernels.matmul import batched
from kanawa_backends_cpu.kernels.matmul.available import why_no_onednn

#: Multiplications of a tile's smallest matmul that isn't left to XLA, which reaches half the speed or less.
_SMALLEST = 64**3
#: The same of chunks of pages, where oneDNN saves copies.
_SMALLEST_OF_CHUNKS = 2**12


def matmul(a: jax.Array, b: jax.Array, *, transpose_a: bool = False, transpose_b: bool = False) -> jax.Array:
    """Returns a @ b of [B, K, …] in fp32, either one transposed in its last two dimensions."""
    return _matmul(a, b, transpose_a, transpose_b)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _matmul(a: jax.Array, b: jax.Array, transpose_a: bool, transpose_b: bool) -> jax.Array:
    multiplications = a.size * b.shape[-2 if transpose_b else -1]
    if multiplications >= _SMALLEST and in_this_process() and batched.suits(a, b):
        return batched.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return _by_xla(a, b, transpose_a, transpose_b)


@_matmul.defjvp
def _matmul_derivative(
    transpose_a: bool, transpose_b: bool, primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (a, b), (da, db) = primals, tangents
    out = _matmul(a, b, transpose_a, transpose_b)
    return out, _by_xla(da, b, transpose_a, transpose_b) + _by_xla(a, db, transpose_a, transpose_b)


def _by_xla(a: jax.Array, b: jax.Array, transpose_a: bool, transpose_b: bool) -> jax.Array:
    dimensions = (((2 if transpose_a else 3,), (3 if transpose_b else 2,)), ((0, 1), (0, 1)))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def matmul_of_chunks(rows: jax.Array, keys: jax.Array, *, transpose: bool) -> jax.Array:
    """Returns rows [C, K, M, D] times keys [C, S, K, D], transposed, in fp32; without `transpose`, [C, K, M, S] times
    values [C, S, K, D].

    oneDNN reads the keys in place; XLA would first copy them to bring heads to the front.
    """
    multiplications = rows.size * (keys.shape[1] if transpose else keys.shape[3])
    by_onednn = rows.dtype == keys.dtype and rows.dtype.name in ("float32", "bfloat16")
    by_onednn = by_onednn and in_this_process() and why_no_onednn(rows.dtype.name) is None
    if not by_onednn or multiplications < _SMALLEST_OF_CHUNKS:
        how = "ckmd,cskd->ckms" if transpose else "ckms,cskd->ckmd"
        return jnp.einsum(how, rows, keys, preferred_element_type=jnp.float32)
    by_head = keys.transpose(0, 2, 1, 3)
    layouts = ((0, 1, 2, 3), (0, 2, 1, 3))
    return onednn.call(rows, by_head, transpose_b=transpose, dtype=jnp.float32, input_layouts=layouts)


def in_this_process() -> bool:
    """Returns whether the traced program runs on one device of this process, as calls of its own functions need."""
    return runs_here() and not mesh_error()
