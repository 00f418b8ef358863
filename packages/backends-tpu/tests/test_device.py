"""What a TPU selector means, and that the figures hang together."""

import re

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa_backends_tpu.device import DEVICES
from kanawa_backends_tpu.schedule.compiled import recorded_cycles

# selector: chips, JAX devices, hosts, slices, topology
TABLE = {
    "v4-8": (4, 4, 1, 1, "2x2x1"),
    "v4-1024": (512, 512, 128, 1, "8x8x8"),
    "v4-2048": (1024, 1024, 256, 1, "8x8x16"),
    "v5e-1": (1, 1, 1, 1, "1x1"),
    "v5e-256": (256, 256, 64, 1, "16x16"),
    "v5e-256x4": (1024, 1024, 256, 4, "16x16"),
    "v5p-8": (4, 4, 1, 1, "2x2x1"),
    "v5p-512": (256, 256, 64, 1, "4x8x8"),
    "v5p-1024": (512, 512, 128, 1, "8x8x8"),
    "v5p-1024x2": (1024, 1024, 256, 2, "8x8x8"),
    "v6e-8": (8, 8, 2, 1, "2x4"),
    "v6e-256x8": (2048, 2048, 512, 8, "16x16"),
    "v7x-128": (64, 128, 16, 1, "4x4x4"),
    "tpu7x-256": (128, 256, 32, 1, "4x4x8"),
}


@pytest.mark.parametrize("selector", TABLE)
def test_selector(selector):
    target = parse_target(selector)
    found = (target.chips, target.jax_devices, target.hosts, target.slices, target.topology)
    assert found == TABLE[selector]


def test_a_slice_that_is_not_sold_names_the_nearest():
    with pytest.raises(TargetError, match="v5p-512"):
        parse_target("v5p-500")


@pytest.mark.parametrize("selector", ["v5p-513", "v5p-511", "v4-9", "v5p-1", "v5e-3", "v6e-9999", "v7x-63"])
def test_what_a_refusal_advises_is_accepted(selector):
    with pytest.raises(TargetError) as refused:
        parse_target(selector)
    advised = re.findall(r"(?<= )[a-z0-9]+-\d+", str(refused.value).partition("; ")[2])
    assert advised
    for choice in advised:
        parse_target(choice)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_sides_rise(device):
    for topology in device.topologies.values():
        sides = [int(side) for side in topology.split("x")]
        assert sides == sorted(sides) or topology == "2x2x1"


@pytest.mark.parametrize(("name", "gigahertz"), [("v4", 1.05), ("v5e", 1.5), ("v5p", 1.75), ("v6e", 1.75)])
def test_peak_and_matrix_units_give_the_known_clock(name, gigahertz):
    """The clocks are Google's; the planner turns the compiler's cycles into seconds by them."""
    device = next(device for device in DEVICES if device.name == name)
    assert device.clock_hz == pytest.approx(gigahertz * 1e9, rel=0.01)


def test_the_torus_has_as_many_dimensions_as_topologies_use():
    for device in DEVICES:
        largest = max(device.topologies)
        used = sum(int(side) > 1 for side in device.topologies[largest].split("x"))
        assert device.torus_dimensions == used, device.name


def test_recorded_cycles_are_found_by_both_names_of_a_chip():
    rows = recorded_cycles()
    by_name = {name: [row.cycles for row in rows if row.device == name] for name in ("v7x", "tpu7x")}
    assert by_name["v7x"] == by_name["tpu7x"] != []
