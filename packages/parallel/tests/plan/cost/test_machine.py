"""What communication costs beside work, and what copies of saved activations take."""

import dataclasses

import pytest
from kanawa.composition.target import parse_target
from kanawa.plugins import Calibration
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.cost.machine import Machine


@pytest.fixture
def machine(job):
    device = parse_target("slow-4").device
    calibration = Calibration(hidden_cost=0.25, kept_passes={"heads": 20.0, "heads_offloaded": 40.0, "offloaded": 5.0})
    return Machine(device, Links.of_devices(device, None, 4), calibration=calibration)


@pytest.mark.parametrize(
    ("busy", "sent", "copied", "total"),
    [
        # Hidden whole: work is slowed for as long as the links run.
        (10.0, 4.0, 0.0, 11.0),
        # The links end last: nobody waits for the slower work as well.
        (10.0, 20.0, 0.0, 20.0),
        # The bus to the host takes nothing from the cores.
        (10.0, 0.0, 8.0, 10.0),
        (10.0, 4.0, 12.0, 16.0),
        (0.0, 3.0, 0.0, 3.0),
    ],
)
def test_a_step_takes_the_longer_of_slowed_work_and_communication(machine, busy, sent, copied, total):
    slowed, beyond = machine.beside(busy, sent, copied)
    assert busy + slowed + beyond == pytest.approx(total)


def test_copies_cost_by_heads_and_by_where_they_go(machine):
    one_pass = 1e9 / machine.memory_bandwidth
    passes = {(4, False): 20, (4, True): 40, (3, True): 5, (3, False): 0}
    for (rank, offloaded), count in passes.items():
        assert machine.kept_seconds(1e9, rank, offloaded) == pytest.approx(count * one_pass)
    plain = dataclasses.replace(machine, calibration=Calibration())
    assert plain.kept_seconds(1e9, 4, True) == 0
