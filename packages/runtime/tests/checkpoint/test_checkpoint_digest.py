"""The digest sees every bit and no sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kanawa_runtime.checkpoint.digest import digest_text, start_digest


def _digest(array: jax.Array) -> str:
    return digest_text(start_digest(array))


DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "int32",
    "int8",
    "uint8",
    "bool",
    "float8_e4m3fn",
    "int4",
    "complex64",
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_single_change_shows(dtype: str) -> None:
    array = jnp.ones((5, 7), dtype)
    changes = [array.at[i, j].set(jnp.zeros((), dtype)) for i in range(5) for j in range(7)]
    digests = {_digest(array), *(_digest(changed) for changed in changes)}
    assert len(digests) == 36


def test_every_bit_counts() -> None:
    words = np.zeros(4, np.uint32)
    digests = set()
    for element in range(4):
        for bit in range(32):
            changed = words.copy()
            changed[element] = np.uint32(1) << np.uint32(bit)
            digests.add(_digest(jnp.asarray(changed).view(jnp.float32)))
    assert len(digests) == 128


def test_order_and_shape_count() -> None:
    array = jnp.arange(64.0)
    assert _digest(array) != _digest(array[::-1])
    assert _digest(array.reshape(8, 8)) != _digest(array.reshape(8, 8).T)
    assert _digest(jnp.zeros((2, 3))) != _digest(jnp.zeros((2, 4)))


def test_signed_zero_and_nan_payloads_count() -> None:
    quiet = np.array([0x7FC00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert _digest(jnp.asarray(quiet)) != _digest(jnp.asarray(other))
    assert _digest(jnp.float32(0.0)) != _digest(jnp.float32(-0.0))
    assert _digest(jnp.asarray(quiet)) == _digest(jnp.asarray(quiet))


def test_sharding_does_not_count() -> None:
    array = jnp.asarray(np.random.default_rng(0).standard_normal((16, 8)), jnp.bfloat16)
    expected = _digest(array)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    for spec in (P(), P("a"), P("b", "a"), P(("a", "b")), P(None, ("b", "a"))):
        assert _digest(jax.device_put(array, NamedSharding(mesh, spec))) == expected
