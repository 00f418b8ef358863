"""What collectives move and over which links: ring formulas, and domains crossed or not."""

import numpy as np
import pytest
from kanawa_parallel.cost_terms import sent_bytes
from kanawa_parallel.plan.cost.collectives import collective
from kanawa_parallel.plan.cost.links import Links


class Chip:
    def __init__(self, index, coords, slice_index=0):
        self.id, self.coords, self.slice_index = index, coords, slice_index


def test_gathered_weights_of_the_compiled_step(modules, island):
    """Both weights of a layer, [256, 512] in bf16, gathered once forward: three of four parts come from others."""
    links = Links.of_devices(island, None, 4)
    module = modules["gpu"]
    found = [
        collective(module, computation, instruction, {"fsdp": 4}, links)
        for computation in module.computations.values()
        for instruction in computation.instructions
    ]
    forward = [c for c in found if c and c.kind == "all-gather" and "transpose" not in c.op_name]
    assert sum(c.bytes for c in forward) == 2 * (256 * 512 * 2) * 3 / 4
    assert {(c.axes, c.link) for c in found if c} == {(("fsdp",), "NVLink")}


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-gather", 700),
        ("all-reduce", 175),
        ("reduce-scatter", 87.5),
        ("all-to-all", 87.5),
        ("collective-permute", 100),
    ],
)
def test_a_ring_of_eight_sends(kind, sent):
    assert sent_bytes(kind, 100, 8) == sent


def test_a_group_in_one_node_uses_nvlink_and_one_across_nodes_its_members_adapters(island):
    links = Links.of_devices(island, None, 16)
    inside = links.between(np.arange(16).reshape(2, 8))
    assert (inside.name, inside.bandwidth) == ("NVLink", island.link_bandwidth)
    pair = links.between(np.array([[0, 8]]))
    assert (pair.name, pair.bandwidth) == ("network", island.network_bandwidth)
    everyone = links.between(np.arange(16)[None])
    assert everyone.bandwidth == min(8 * island.network_bandwidth, island.link_bandwidth)


def test_a_torus_group_uses_the_dimensions_it_spans(torus):
    chips = [Chip(i, tuple(map(int, np.unravel_index(i, (4, 4, 4))))) for i in range(64)]
    links = Links.of_devices(torus, chips, 64)
    line, cube = np.arange(4)[None], np.arange(64)[None]
    assert links.between(line).bandwidth == pytest.approx(torus.link_bandwidth / 3)
    assert links.between(cube).bandwidth == pytest.approx(torus.link_bandwidth)
    assert links.between(cube, one_dimension=True).bandwidth == pytest.approx(torus.link_bandwidth / 3)


def test_slices_talk_over_dcn(torus):
    chips = [Chip(i, (i % 2, i // 2 % 2, 0), i // 4) for i in range(8)]
    links = Links.of_devices(torus, chips, 8)
    assert links.between(np.array([[0, 4]])).name == "DCN"
    assert links.between(np.array([[0, 1, 2, 3]])).name == "ICI"
