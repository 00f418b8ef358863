"""How kernels are called: two cores of a logical one, loops in any order, without NKI, and in a plan's program."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from kanawa.arrays.plan import ExecutionPlan, use_plan
from kanawa.errors import KernelError
from kanawa_backends_neuron.kernels.launch import launch, logical_cores

nki = pytest.importorskip("nki")
from kanawa_backends_neuron.kernels.attention.decode import attention_decode  # noqa: E402
from kanawa_backends_neuron.kernels.attention.forward import attention_forward  # noqa: E402
from kanawa_backends_neuron.kernels.grouped_matmul.rows import grouped_rows  # noqa: E402
from kanawa_backends_neuron.kernels.rms_norm.backward import rms_norm_backward  # noqa: E402

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def rows(*numbers):
    return np.array(numbers, np.uint32)


KERNELS = {
    "forward": (
        attention_forward,
        *(normal(3, 2, 140, 16), normal(3, 140, 16), normal(3, 140, 16), None, None, None),
        *(0.25, 0.0, (True, -1, -1, 0)),
    ),
    "decode": (
        attention_decode,
        *(normal(3, 2, 1, 16), normal(6, 32, 32), normal(6, 32, 32)),
        *(np.arange(6, dtype=np.int32)[:, None], np.array([[0, 2], [2, 3], [4, 6]], np.int32)),
        *(np.tile(np.array([[0.0], [32.0]], np.float32), (3, 1)), np.array([[41], [32], [64]], np.float32)),
        np.tile(np.float32([0, 40]), (3, 1, 1)),
        *(0.25, 0.0, 32, 1),
    ),
    "grouped_rows": (
        grouped_rows,
        *(normal(128, 16), normal(2, 16, 8)),
        *(np.where(np.arange(256).reshape(2, 128) < 128, np.arange(256).reshape(2, 128), 128).astype(np.uint32),) * 2,
        np.array([[1], [0]], np.int32),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_rows_don_t_depend_on_each_other(name):
    function, *arguments = KERNELS[name]
    alone, backwards, shared = (
        nki.simulate(kernel, backwards=order)(*arguments)
        for kernel, order in ((function, False), (function, True), (nki.jit(function)[2], False))
    )
    for one, other, both in zip(
        *(x if isinstance(x, tuple) else (x,) for x in (alone, backwards, shared)), strict=True
    ):
        # A loop over a row's own keys sums in another order.
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert np.array_equal(one, both)


def test_each_core_sums_its_rows_gradients():
    x, dy, inverse = normal(5, 4, 8), normal(5, 4, 8), 1 + RNG.random((5, 4, 1)).astype(np.float32)
    scale = normal(1, 8)
    dx, one = nki.simulate(rms_norm_backward)(x, scale, inverse, dy)
    dx_shared, two = nki.simulate(nki.jit(rms_norm_backward)[2])(x, scale, inverse, dy)
    assert one.shape == (1, 8)
    assert two.shape == (2, 8)
    assert np.array_equal(dx, dx_shared)
    np.testing.assert_allclose(two.sum(axis=0), one[0], rtol=1e-5, atol=1e-6)


def called(x, scale):
    outputs = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:2], 1), jnp.float32))
    return launch("rms_norm.forward:rms_norm_forward", outputs, (x, scale), 1e-6)


def test_without_nki_the_error_says_what_to_install(monkeypatch):
    # What PyPI's placeholder looks like: the package is there, and its modules aren't.
    monkeypatch.setitem(sys.modules, "nki.isa", None)
    with pytest.raises(Exception, match="PyPI's nki is an empty placeholder") as caught:
        jax.block_until_ready(called(jnp.ones((1, 4, 8)), jnp.ones((1, 8))))
    assert '--set execution.kernels={"rms_norm":"rms_norm.any.reference"}' in str(caught.value)


def test_on_neuron_devices_tracing_asks_for_nki(monkeypatch):
    monkeypatch.setitem(sys.modules, "nki.isa", None)
    monkeypatch.setattr(jax, "default_backend", lambda: "neuron")
    with pytest.raises(KernelError, match="install nki 0.7 or newer of AWS Neuron SDK 2.33"):
        called(jnp.ones((1, 4, 8)), jnp.ones((1, 8)))


def test_a_plan_compiles_the_call_under_its_name():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    with use_plan(ExecutionPlan(platform="neuron", device_kind="NC_v3d")):
        mapped = jax.shard_map(
            called, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec()), out_specs=PartitionSpec(), check_vma=False
        )
        lowered = jax.jit(mapped).trace(jnp.ones((1, 4, 8)), jnp.ones((1, 8))).lower(lowering_platforms=("neuron",))
    text = lowered.compile().as_text()
    calls = [line for line in text.splitlines() if "custom-call(" in line]
    assert len(calls) == 1
    assert "rms_norm_forward" in calls[0]


@pytest.mark.parametrize(
    "kind, variable, cores", [("NC_v3d", None, 2), ("NC_v3", None, 1), ("NC_v2", None, 1), ("NC_v3d", "1", 1)]
)
def test_cores_of_a_device(kind, variable, cores, monkeypatch):
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    if variable is not None:
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", variable)
    with use_plan(ExecutionPlan(platform="neuron", device_kind=kind)):
        assert logical_cores() == cores
