"""What a GPU selector means, and that the figures hang together."""

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa_backends_gpu.device import DEVICES, NVIDIA
from kanawa_backends_gpu.target_config import silicon, target_config
from kanawa_backends_gpu.topology import arrangement

# selector: GPUs, hosts, what XLA calls the arrangement
TABLE = {
    "a100": (1, 1, "1x1x1"),
    "a100_40gb-16": (16, 2, "2x1x8"),
    "h100-4": (4, 1, "1x1x4"),
    "h100-8": (8, 1, "1x1x8"),
    "h100-256": (256, 32, "32x1x8"),
    "h200-64": (64, 8, "8x1x8"),
    "b200-512": (512, 64, "64x1x8"),
    "b300-16": (16, 2, "2x1x8"),
    "gb200-72": (72, 18, "1x18x4"),
    # 72 GPUs are one domain, and 64 of each are used where their number is a power of two.
    "gb300-256": (256, 64, "4x16x4"),
    "mi300x-8": (8, 1, "1x1x8"),
    "mi355x-64": (64, 8, "8x1x8"),
}


@pytest.mark.parametrize("selector", TABLE)
def test_selector(selector):
    target = parse_target(selector)
    assert target.chips == target.jax_devices
    assert (target.chips, target.hosts, arrangement(target)) == TABLE[selector]


def test_hosts_must_be_full():
    with pytest.raises(TargetError, match="h100-8 or h100-16"):
        parse_target("h100-12")


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_figures_hang_together(device):
    peaks = device.peak_flops
    assert peaks["float32"] < peaks["bfloat16"] == peaks["float16"] < peaks.get("float4_e2m1fn", peaks["int8"])
    assert device.link_bandwidth > device.network_bandwidth
    # Reading all of its memory takes a GPU tens of milliseconds: catches a wrong power of ten.
    assert 10 < device.memory_bandwidth / device.memory_bytes < 100


@pytest.mark.parametrize("device", NVIDIA, ids=lambda device: device.name)
def test_the_units_of_a_chip_make_its_float32_peak(device):
    chip = silicon(device)
    vector_peak = 2 * chip.multiprocessors * chip.float32_units * chip.clock_ghz * 1e9
    assert vector_peak == pytest.approx(device.peak_flops["float32"], rel=0.01)


@pytest.mark.parametrize("device", NVIDIA, ids=lambda device: device.name)
def test_target_config_is_balanced_text(device):
    text = target_config(device)
    assert text.count("{") == text.count("}") == 4
    assert f"device_memory_size: {device.memory_bytes}\n" in text
