"""muP on a real model: coordinates keep their size over width, and the best rate stays put (nightly)."""

import importlib
import pathlib
import sys

import kanawa as kn
import pytest
from kanawa.testing.width import coordinate_slopes

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
RATE, STEPS = 2.0**-6, 4
STREAM = "stack.layer.residual_stream"


@pytest.fixture(scope="module")
def transfer():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("width_transfer")
    finally:
        sys.path.remove(str(BENCHMARKS))


def slopes(transfer, mup, optimizer="adamw"):
    def experiment(width):
        cfg = transfer.experiment(width, RATE, STEPS, optimizer, mup).clone()
        cfg.learner.set(schedule=kn.component("schedules", "constant").Config(peak=RATE))
        return cfg.freeze()

    return coordinate_slopes(experiment, (64, 256), transfer.batches(STEPS), ("**.feed_forward_output",))


def test_coordinates_keep_their_size_with_mup_and_grow_without(transfer):
    with_it, without = (next(iter(slopes(transfer, mup).values())) for mup in (True, False))
    assert abs(with_it[0]) < 0.15
    # Narrow streams of unlike tokens overlap by chance, which makes their changes larger than in the limit.
    assert -0.7 < with_it[1] < 0.1, f"what training changes keeps its size: {with_it}"
    assert without[1] > 0.4, f"without muP it grows with width: {without}"


@pytest.mark.nightly
def test_the_best_rate_stays_put_from_width_64_to_1024(transfer):
    rates = [2.0**exponent for exponent in (-11, -9, -8, -7, -6, -5)]
    widths = [64, 128, 256, 512, 1024]
    best = {mup: [row["best"] for row in transfer.table(widths, rates, 40, "adamw", mup)] for mup in (True, False)}
    assert max(best[True]) / min(best[True]) < 2.0
    assert max(best[False]) / min(best[False]) > 3.0
