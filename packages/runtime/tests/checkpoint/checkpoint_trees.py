"""Small trees with every kind of leaf a training state has, and the marks of tests in which orbax fails."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# Where a save or a read fails, orbax abandons coroutines that it had made.
ABANDONED = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.usefixtures("collected"),
]


def make_trees(seed: int = 0) -> dict[str, Any]:
    """Returns params, state and opt with float32, bfloat16, int, bool, scalar.

    Empty and NaN leaves.
    """
    random = np.random.default_rng(seed)
    normal = random.standard_normal
    params = {
        "embed": {"weight": jnp.asarray(normal((48, 16)), jnp.float32)},
        "stack": {
            "layers[0]": {"w": jnp.asarray(normal((16, 24)), jnp.bfloat16)},
            "layers[1]": {
                "w": jnp.asarray([[np.nan, -0.0, np.inf, 1e-40]], jnp.float32),
                "none": {},
            },
        },
        "nothing": jnp.zeros((0, 4), jnp.float32),
    }
    state = {
        "router": {
            "load": jnp.asarray(random.integers(0, 9, 5), jnp.int32),
            "on": jnp.asarray([True, False]),
        }
    }
    opt = {
        "adam/mu/embed.weight": params["embed"]["weight"] * 3,
        "adam/count": jnp.asarray(seed, jnp.int32),
    }
    return {"params": params, "state": state, "opt": opt}


def abstract(trees: Any) -> Any:
    """Returns the trees as ShapeDtypeStructs with shardings."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), trees)


def assert_bitwise(found: Any, expected: Any) -> None:
    """Asserts equal structure, dtypes and bits, NaN payloads and signed zeros included."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
