"""This machine's processor as a device."""

import os

from kanawa.plugins import DeviceSpec
from kanawa.plugins.devices import machine_memory_bytes

from kanawa_backends_cpu.processor import processor

# Not measured: what a common server core does at least. A plan for `cpu` is a rough one.
_FLOPS_PER_CORE = 16e9
_MEMORY_BANDWIDTH = 20e9

CPU = DeviceSpec(
    name="cpu",
    platform="cpu",
    family="cpu",
    device_kinds=("cpu",),
    peak_flops=dict.fromkeys(("float32", "bfloat16"), (os.cpu_count() or 1) * _FLOPS_PER_CORE),
    memory_bytes=machine_memory_bytes(),
    memory_bandwidth=_MEMORY_BANDWIDTH,
    link_bandwidth=_MEMORY_BANDWIDTH,
    network_bandwidth=1e9,
    chips_per_host=1,
    link_name="memory",
    exact_float32=True,
    model=processor().name,
    divisible=True,
    source="this machine: memory from sysconf, the other figures not measured",
)

DEVICES = (CPU,)
