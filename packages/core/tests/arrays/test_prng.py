"""Keys by name: a fixed hash, independent of order, threefry everywhere."""

import hashlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from kanawa.arrays.prng import fold_name, name_hash, step_key


def data(key):
    return np.asarray(jax.random.key_data(key)).tolist()


@given(st.text(max_size=30))
def test_the_hash_is_the_head_of_sha256(name):
    assert name_hash(name) == int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    assert 0 <= name_hash(name) < 2**32


def test_another_process_has_the_same_hash():
    """Python's own hash of a string differs between processes, and with it every initial value would."""
    code = "from kanawa.arrays.prng import name_hash; print(name_hash('layers[0].weight'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) == name_hash("layers[0].weight")


def test_folds_do_not_depend_on_what_else_was_folded():
    key = jax.random.key(1)
    alone = data(fold_name(key, "b"))
    fold_name(key, "a")
    assert data(fold_name(key, "b")) == alone
    assert data(fold_name(key, "a")) != alone


def test_order_of_a_path_matters():
    key = jax.random.key(1)
    assert data(fold_name(fold_name(key, "a"), "b")) != data(fold_name(fold_name(key, "b"), "a"))


def test_traced_and_raw_keys_fold_alike():
    key = jax.random.key(4)
    assert data(jax.jit(lambda k: fold_name(k, "x"))(key)) == data(fold_name(key, "x"))
    stacked = jax.vmap(lambda k: fold_name(k, "x"))(jax.random.split(key, 3))
    assert data(stacked[1]) == data(fold_name(jax.random.split(key, 3)[1], "x"))


def test_a_steps_key_is_a_pure_function_of_seed_and_step():
    assert data(step_key(3, 7)) == data(jax.random.fold_in(jax.random.key(3), 7))
    assert data(jax.jit(lambda step: step_key(3, step))(jnp.int32(7))) == data(step_key(3, 7))
    keys = {tuple(data(step_key(seed, step))) for seed in range(3) for step in range(5)}
    assert len(keys) == 15


def test_it_is_threefry_whatever_the_default():
    with jax.default_prng_impl("rbg"):
        assert str(jax.random.key_impl(step_key(0, 0))) == "threefry2x32"
