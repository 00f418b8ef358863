"""Measures what this machine does: FLOP/s of a matmul and bytes a second of a sum, in a few seconds."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from kanawa.plugins import DeviceSpec

#: Rows of the square matmul, and elements of the sum: larger than any cache.
_WIDTH, _ELEMENTS = 1024, 32 * 2**20
_RUNS = 7


def measured_device(spec: DeviceSpec, devices: int = 1) -> DeviceSpec:
    """Returns `spec` with this machine's measured FLOP/s and memory bandwidth, shared by `devices`."""
    flops = _flops("float32") / devices
    bandwidth = _bandwidth() / devices
    return dataclasses.replace(
        spec,
        peak_flops={"float32": flops, "bfloat16": _flops("bfloat16") / devices},
        memory_bandwidth=bandwidth,
        link_bandwidth=bandwidth,
        source=f"measured here: {flops * devices / 1e9:.1f} GFLOP/s in float32, {bandwidth * devices / 1e9:.1f} GB/s",
    )


def _flops(dtype: str) -> float:
    x = jnp.ones((_WIDTH, _WIDTH), dtype)
    return 2.0 * _WIDTH**3 / _seconds(jax.jit(lambda a: a @ a), x)


def _bandwidth() -> float:
    """Returns bytes a second of y = x + 1: one read and one write an element."""
    x = jnp.ones((_ELEMENTS,), jnp.float32)
    return 2.0 * x.nbytes / _seconds(jax.jit(lambda a: a + 1.0), x)


def _seconds(function: Callable[..., Any], x: jax.Array) -> float:
    """Returns the median time of a run, after one that compiles."""
    jax.block_until_ready(function(x))
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        jax.block_until_ready(function(x))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
