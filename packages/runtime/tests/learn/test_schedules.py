"""Schedules at their corners."""

import math

import jax
import numpy as np
import pytest
from kanawa.contracts import ScheduleFactory
from kanawa.errors import UsageError
from kanawa_runtime.learn.schedules import (
    Constant,
    InverseSquareRoot,
    WarmupCosine,
    WarmupLinear,
    WarmupStableDecay,
)


def _values(cfg: ScheduleFactory.Config, steps: list[int], total: int = 100) -> list[float]:
    schedule = jax.jit(cfg.build().schedule(total))
    return [float(schedule(np.int32(step))) for step in steps]


def test_constant() -> None:
    assert _values(Constant.Config(peak=2.0), [0, 50, 500]) == [2.0, 2.0, 2.0]
    assert _values(Constant.Config(peak=2.0, warmup_steps=4), [0, 1, 4, 9]) == [0.0, 0.5, 2.0, 2.0]


def test_cosine_halves_half_way_and_stays_at_the_end() -> None:
    cfg = WarmupCosine.Config(peak=1.0, warmup_steps=20, final_fraction=0.2)
    found = _values(cfg, [0, 10, 20, 60, 100, 1000])
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.6, 0.2, 0.2])
    quarter = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4))
    assert _values(cfg, [40]) == pytest.approx([quarter])


def test_decay_steps_win_over_the_run_length() -> None:
    cfg = WarmupCosine.Config(peak=1.0, decay_steps=50, final_fraction=0.0)
    assert _values(cfg, [25, 50, 99]) == pytest.approx([0.5, 0.0, 0.0], abs=1e-6)


def test_linear() -> None:
    cfg = WarmupLinear.Config(peak=1.0, warmup_steps=20)
    assert _values(cfg, [20, 40, 60, 100]) == pytest.approx([1.0, 0.75, 0.5, 0.0])


def test_stable_then_decay() -> None:
    cfg = WarmupStableDecay.Config(peak=1.0, warmup_steps=10, decay_fraction=0.2)
    assert _values(cfg, [5, 10, 79, 80, 90, 100]) == pytest.approx([0.5, 1, 1, 1, 0.5, 0], abs=1e-6)


def test_inverse_square_root_falls_on_and_cools_down_at_the_end() -> None:
    cfg = InverseSquareRoot.Config(peak=2.0, warmup_steps=4)
    assert _values(cfg, [0, 2, 4, 16, 100, 400], 1000) == pytest.approx([0.0, 1.0, 2.0, 1.0, 0.4, 0.2])
    cooled = InverseSquareRoot.Config(peak=2.0, warmup_steps=4, timescale=12, decay_fraction=0.2, final_fraction=0.1)
    at = [2.0 * math.sqrt(12 / (8 + step)) for step in (80, 90, 100)]
    assert _values(cooled, [80, 90, 100, 500]) == pytest.approx(
        [at[0], 0.55 * at[1], 0.1 * at[2], 0.2 * math.sqrt(12 / 508)]
    )
    with pytest.raises(UsageError, match="100 steps have no room for a warm-up of 60 and a decay of 50"):
        InverseSquareRoot.Config(peak=1.0, warmup_steps=60, decay_fraction=0.5).build().schedule(100)


def test_schedules_without_room_are_refused() -> None:
    with pytest.raises(UsageError, match="warm-up alone takes 20"):
        WarmupCosine.Config(peak=1.0, warmup_steps=20).build().schedule(20)
    with pytest.raises(UsageError, match="no room for a warm-up of 95"):
        WarmupStableDecay.Config(peak=1.0, warmup_steps=95).build().schedule(100)
    with pytest.raises(UsageError, match=r"warmup_steps: expected int \(at least 0\)"):
        Constant.Config(peak=1.0, warmup_steps=-1).build().schedule(10)


def test_a_warm_up_by_fraction_fits_a_run_of_any_length() -> None:
    cfg = WarmupCosine.Config(peak=1.0, warmup_fraction=0.1)
    for steps in (1, 5, 1000):
        cfg.build().schedule(steps)
    assert float(cfg.build().schedule(100)(10)) == 1.0
    assert float(cfg.clone().set(warmup_steps=50).build().schedule(100)(10)) == pytest.approx(0.2), "steps win"
    with pytest.raises(UsageError, match=r"warmup_fraction: expected float \(at least 0, below 1\)"):
        Constant.Config(peak=1.0, warmup_fraction=1.0).build().schedule(10)
