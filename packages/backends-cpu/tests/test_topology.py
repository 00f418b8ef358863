"""CPU devices that plans are compiled for: as many as the target has, or an error that says what to set."""

import jax
import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa_backends_cpu.topology import MAX_DEVICES, provide_devices, topology


def test_a_target_gets_as_many_devices_as_it_has():
    assert topology(parse_target("cpu")) == jax.devices("cpu")[:1]


def test_more_devices_than_a_process_can_have():
    with pytest.raises(TargetError, match=f"4,096 CPU devices can't be compiled: XLA gives a process {MAX_DEVICES:,}"):
        provide_devices(4096)
    present = len(jax.devices("cpu"))
    message = f"needs {present + 1} CPU devices and JAX started with {present}; set JAX_NUM_CPU_DEVICES={present + 1}"
    with pytest.raises(TargetError, match=message):
        provide_devices(present + 1)
