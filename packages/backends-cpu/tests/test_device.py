"""What the selectors `cpu` and `cpu-8` mean."""

import os

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa.plugins.devices import device_spec_of_kind
from kanawa_backends_cpu.device import CPU


def test_devices_divide_the_machine():
    whole, part = parse_target("cpu"), parse_target("cpu-8")
    assert (part.chips, part.jax_devices, part.hosts) == (8, 8, 1)
    for figure in ("memory_bytes", "memory_bandwidth", "link_bandwidth"):
        assert getattr(part.device, figure) == pytest.approx(getattr(whole.device, figure) / 8)
    assert part.device.peak_flops["float32"] * 8 == whole.device.peak_flops["float32"]
    assert part.device.chips_per_host == part.device.domain_chips == 8


def test_memory_is_the_systems():
    assert CPU.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_slices_are_refused():
    with pytest.raises(TargetError, match="use cpu-16"):
        parse_target("cpu-8x2")


def test_jax_reports_it_by_its_kind():
    assert device_spec_of_kind("cpu") == CPU
