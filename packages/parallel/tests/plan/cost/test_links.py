"""Which link limits a group, on lines, planes and cubes of chips, in islands, and between them."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kanawa.plugins import DeviceSpec
from kanawa_parallel.plan.cost.links import Links

FAST, SLOW = 6e11, 6e9


def chip(dimensions, **figures):
    return DeviceSpec(
        name="chip",
        platform="tpu",
        peak_flops={"bfloat16": 1e15},
        memory_bytes=2**30,
        memory_bandwidth=1e12,
        link_bandwidth=FAST,
        network_bandwidth=SLOW,
        chips_per_host=4,
        domain_chips=figures.pop("domain_chips", 4096),
        torus_dimensions=dimensions,
        link_name="wires",
        network_name="cables",
        source="made for tests",
        **figures,
    )


class Device:
    def __init__(self, index, coords, slice_index=0):
        self.id, self.coords, self.slice_index = index, coords, slice_index


def torus(*sides, slices=1):
    """Returns devices in row order, slice by slice; coordinates have three numbers, as on a TPU."""
    places = [(*place, 0, 0)[:3] for place in itertools.product(*map(range, sides))]
    return [Device(i, place, i // len(places)) for i, place in enumerate(places * slices)]


@pytest.mark.parametrize(
    ("dimensions", "sides", "group", "share"),
    [
        (1, (8,), range(8), 1),
        (2, (4, 4), range(4), 1 / 2),  # A row.
        (2, (4, 4), range(0, 16, 4), 1 / 2),  # A column.
        (2, (4, 4), range(16), 1),
        (2, (4, 4), [0, 5, 10, 15], 1),  # A diagonal has both dimensions' wires.
        (3, (4, 4, 4), range(4), 1 / 3),
        (3, (4, 4, 4), range(16), 2 / 3),
        (3, (4, 4, 4), range(64), 1),
    ],
    ids=["line", "row", "column", "plane", "diagonal", "line of a cube", "plane of a cube", "cube"],
)
def test_a_group_has_the_wires_of_the_dimensions_it_spans(dimensions, sides, group, share):
    devices = torus(*sides)
    link = Links.of_devices(chip(dimensions), devices, len(devices)).between(np.array([list(group)]))
    assert link.name == "wires"
    assert link.bandwidth == pytest.approx(FAST * share)


@given(
    sides=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    members=st.sets(st.integers(0, 63), min_size=2, max_size=8),
    one=st.booleans(),
)
def test_shares_are_between_one_dimension_and_all(sides, members, one):
    devices = torus(*sides)
    group = sorted(m % len(devices) for m in members)
    links = Links.of_devices(chip(len(sides)), devices, len(devices))
    share = links.between(np.array([group]), one_dimension=one).bandwidth / FAST
    spanned = sum(len({devices[m].coords[axis] for m in group}) > 1 for axis in range(3))
    assert share == pytest.approx((1 if one else max(1, spanned)) / len(sides))


@pytest.mark.parametrize("members", [2, 4, 8])
def test_a_ring_between_slices_leaves_each_by_all_its_members(members):
    """Half the members stand in either slice; each has an adapter of its own, which they use at once."""
    devices = torus(4, 2, slices=2)
    links = Links.of_devices(chip(2), devices, 16)
    group = [*range(members // 2), *range(8, 8 + members // 2)]
    link = links.between(np.array([group]))
    assert link.name == "cables"
    assert link.bandwidth == pytest.approx(SLOW * (members // 2))


def test_adapters_together_are_not_quicker_than_the_wires_that_feed_them():
    quick = dataclasses.replace(chip(2), network_bandwidth=FAST)
    devices = torus(4, 2, slices=2)
    assert Links.of_devices(quick, devices, 16).between(np.arange(16)[None]).bandwidth == pytest.approx(FAST)


@pytest.mark.parametrize("per_chip", [1, 2, 4])
def test_devices_of_one_chip_share_its_links(per_chip):
    device = chip(0, jax_devices_per_chip=per_chip, domain_chips=4)
    links = Links.of_devices(device, None, 16 * per_chip)
    assert links.between(np.arange(2)[None]).bandwidth == FAST / per_chip
    far = np.array([[0, 4 * per_chip]])
    assert links.between(far) == dataclasses.replace(links.between(far), name="cables", bandwidth=SLOW / per_chip)


@pytest.mark.parametrize("per_chip", [1, 2, 4])
def test_a_ring_through_all_devices_of_its_chips_has_their_links_whole(per_chip):
    device = chip(3, jax_devices_per_chip=per_chip)
    devices = [Device(i, (i // per_chip, 0, 0)) for i in range(8 * per_chip)]
    for links in (Links.of_devices(device, devices, len(devices)), Links(device, np.zeros(len(devices), int))):
        share = 1 if links.places is None else 1 / 3
        assert links.between(np.arange(len(devices))[None]).bandwidth == pytest.approx(FAST * share)
        # One device of each chip: the others' rings need the links as well.
        alone = np.arange(0, len(devices), per_chip)[None]
        assert links.between(alone).bandwidth == pytest.approx(FAST * share / per_chip)


def test_islands_begin_at_the_first_device_whatever_its_number():
    devices = [Device(100 + i, None) for i in range(8)]
    links = Links.of_devices(chip(0, domain_chips=4), devices, 8)
    assert links.domains.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("groups", [np.zeros((0, 2), int), np.array([[0]]), np.array([[99, 98]])])
def test_nobody_to_talk_to_is_no_crash(groups):
    assert Links.of_devices(chip(2), torus(2, 2), 4).between(groups).bandwidth > 0


def test_places_count_only_where_links_form_a_torus():
    devices = torus(4, 4)
    flat = Links.of_devices(chip(0, domain_chips=16), devices, 16)
    assert flat.places is None
    assert flat.between(np.arange(4)[None]).bandwidth == FAST
    assert math.isclose(Links.of_devices(chip(2), devices, 16).between(np.arange(4)[None]).bandwidth, FAST / 2)


@pytest.mark.parametrize(
    ("chips", "domain", "expected"), [(8, 72, 8), (72, 72, 72), (144, 72, 72), (256, 72, 64), (1024, 72, 64)]
)
def test_domains_are_of_one_size(chips, domain, expected):
    device = chip(0, domain_chips=domain)
    assert device.chips_in_domain(chips) == expected
    links = Links.of_devices(device, None, chips)
    assert links.between(np.arange(expected)[None]).name == "wires"
    if chips > expected:
        assert links.between(np.arange(expected + 1)[None]).name == "cables"


@pytest.mark.parametrize(("members", "used"), [(2, 1), (4, 3), (8, 7)])
def test_a_group_uses_the_wires_between_its_members(members, used):
    links = Links.of_devices(chip(0, domain_chips=8, direct_links=7), None, 8)
    assert links.between(np.arange(members)[None]).bandwidth == pytest.approx(FAST * used / 7)
