"""Selectors against fake devices; the real figures are tested in the backends."""

import os

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa.plugins import DeviceSpec, PluginHost, hookimpl, set_host
from kanawa.plugins.devices import device_spec_of_kind


def spec(name, **figures):
    defaults = {
        "platform": "tpu",
        "memory_bytes": 2**30,
        "memory_bandwidth": 1e12,
        "link_bandwidth": 1e11,
        "network_bandwidth": 1e10,
        "chips_per_host": 4,
        "source": "made up",
    }
    return DeviceSpec(name=name, **{**defaults, **figures})


CORES = spec(
    "v5p",
    counted="cores",
    cores_per_chip=2,
    device_kinds=("TPU v5",),
    topologies={4: "2x2x1", 256: "4x8x8", 512: "8x8x8"},
)
CHIPS = spec("v6e", topologies={1: "1x1", 4: "2x2", 256: "16x16"})
TWO_DEVICES = spec("tpu7x", jax_devices_per_chip=2, topologies={64: "4x4x4"})
GPU = spec("h100", platform="gpu", chips_per_host=8)


class Devices:
    def __init__(self, *specs):
        self.specs = list(specs)

    @hookimpl
    def kanawa_device_specs(self):
        return self.specs


@pytest.fixture
def devices():
    host = PluginHost(discover=list)
    old = set_host(host)
    host.register(Devices(CORES, CHIPS, TWO_DEVICES, GPU), "fakes")
    yield host
    set_host(old)


@pytest.mark.parametrize(
    ("selector", "chips", "jax_devices", "hosts", "slices", "topology"),
    [
        ("v5p-512", 256, 256, 64, 1, "4x8x8"),
        ("v5p-1024", 512, 512, 128, 1, "8x8x8"),
        ("v5p-8x2", 8, 8, 2, 2, "2x2x1"),
        ("v6e-256", 256, 256, 64, 1, "16x16"),
        ("v6e-256x4", 1024, 1024, 256, 4, "16x16"),
        ("v6e", 1, 1, 1, 1, "1x1"),
        ("tpu7x-64", 64, 128, 16, 1, "4x4x4"),
        ("h100", 1, 1, 1, 1, ""),
        ("h100-3", 3, 3, 1, 1, ""),
        ("h100-256", 256, 256, 32, 1, ""),
        (" H100-8 ", 8, 8, 1, 1, ""),
        ("cpu", 1, 1, 1, 1, ""),
        ("cpu-8", 8, 8, 1, 1, ""),
    ],
)
def test_counts(devices, selector, chips, jax_devices, hosts, slices, topology):
    target = parse_target(selector)
    assert (target.chips, target.jax_devices, target.hosts) == (chips, jax_devices, hosts)
    assert (target.slices, target.topology) == (slices, topology)
    assert target.selector == selector.strip().lower()


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("v5p-511", "counts cores, 2 a chip, and 511 is not a whole number of chips; use v5p-512"),
        ("v5p-10", "no slice of v5p has 5 chips; the nearest are v5p-8 or v5p-512 or v5p-1024"),
        ("h100-12", "12 chips are not a whole number of hosts.*use h100-8 or h100-16"),
        ("h10-8", r"unknown device 'h10' in target 'h10-8'; did you mean 'h100'\?"),
        ("trn2-64", r"not installed: kanawa-backends-neuron \(pip install"),
        ("trn2-64", "device descriptions come from: local"),
        ("h100-0", "counts start at 1"),
        ("v6e-4x0", "counts start at 1"),
        ("h100-", "can't be read; expected DEVICE, DEVICE-COUNT"),
        ("h100-8x", "can't be read"),
        ("", "can't be read"),
        ("cpu-4x2", "cpu is one machine; use cpu-8"),
    ],
)
def test_errors_say_what_would_be_valid(devices, selector, message):
    with pytest.raises(TargetError, match=f"(?s){message}"):
        parse_target(selector)


def test_cpu_devices_share_the_machine():
    whole, eighth = parse_target("cpu").device, parse_target("cpu-8").device
    assert whole.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert eighth.memory_bytes == whole.memory_bytes // 8
    assert eighth.peak_flops["float32"] * 8 == pytest.approx(whole.peak_flops["float32"])


def test_two_equal_descriptions_of_one_device_are_one(devices, caplog):
    devices.register(Devices(CORES), "again")
    assert parse_target("v5p-512").device == CORES
    assert not caplog.records


def test_device_is_found_by_what_jax_calls_it(devices):
    assert device_spec_of_kind("TPU v5") is CORES
    assert device_spec_of_kind("cpu").name == "cpu"
    assert device_spec_of_kind("Abacus") is None


@pytest.mark.parametrize("selector", ["cpu-" + "9" * 400, "cpu-" + "9" * 5_000, "cpu-1000001", "v5p-512x9999999"])
def test_more_devices_than_there_are(devices, selector):
    with pytest.raises(TargetError, match="at most 1,000,000 devices can be planned for") as error:
        parse_target(selector)
    assert len(str(error.value)) < 300
