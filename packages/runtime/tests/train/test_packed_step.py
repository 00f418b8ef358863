"""Rollouts packed several to a row: where each token goes, when it is worth it, and that nothing else changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kanawa.contracts import Program, RolloutBatch
from kanawa_runtime.train.packed_step import PackedStep, packed_rollouts


def rollouts(lengths: list[int], length: int) -> RolloutBatch:
    rng, shape = np.random.default_rng(len(lengths)), (len(lengths), length)
    there = np.arange(length) < np.asarray(lengths)[:, None]
    ids, targets = (rng.integers(1, 50, shape).astype(np.int32) * there for _ in range(2))
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), shape)
    numbers = [(rng.random(shape) * there).astype(np.float32) for _ in range(3)]
    return RolloutBatch(ids, targets, positions, there.astype(np.int32), *numbers)


@given(st.lists(st.integers(1, 24), min_size=1, max_size=20), st.sampled_from((24, 600)))
@settings(max_examples=60, deadline=None)
def test_every_token_is_in_one_place_of_its_own_segment(lengths: list[int], length: int) -> None:
    batch = rollouts(lengths, length)
    packed = packed_rollouts(batch)
    if packed is None:
        return
    there = packed.places >= 0
    assert (there.sum(1) == lengths).all()
    assert len(np.unique(packed.places[there])) == sum(lengths) == (packed.segment_ids > 0).sum()
    for name in ("input_ids", "target_ids", "positions", "loss_weights", "advantages", "sampled_logprobs"):
        moved, own = getattr(packed, name), getattr(batch, name)
        assert (moved.reshape(-1)[packed.places[there]] == own[there]).all()
        assert moved[packed.segment_ids == 0].sum() == 0
    # A segment is one rollout, and lies in one row.
    rows, columns = np.divmod(packed.places, packed.input_ids.shape[1])
    owners = {}
    for number, mine in enumerate(there):
        assert np.ptp(rows[number][mine]) == 0
        (segment,) = set(packed.segment_ids[rows[number][mine], columns[number][mine]].tolist())
        assert owners.setdefault((rows[number][0], segment), number) == number
    assert packed.input_ids.size <= 0.75 * batch.input_ids.size + packed.input_ids.shape[1]


def test_rows_that_are_full_stay_as_they_are() -> None:
    assert packed_rollouts(rollouts([24] * 8, 24)) is None
    assert packed_rollouts(rollouts([24] * 4 + [22] * 4, 24)) is None


def test_a_quarter_more_or_less_decides_between_three_sizes() -> None:
    heights = [packed_rollouts(rollouts([n] * 16, 24)).input_ids.shape for n in (3, 6, 12)]
    assert heights == [(2, 48), (2, 48), (4, 48)]
    # Two fit in a row of 48, three don't: eight rows of them, and those are all there are.
    assert packed_rollouts(rollouts([17] * 16, 24)) is None
    assert packed_rollouts(rollouts([24] * 8 + [7] * 8, 24)).input_ids.shape == (6, 48)


def test_a_program_is_compiled_once_for_each_size() -> None:
    compiled = []

    def compile_step(program: object) -> object:
        compiled.append(program)
        return lambda before, batch: (before, batch.input_ids.shape)

    kn_step = Program("train_step", lambda *_: None, ("state", None))
    step = PackedStep(kn_step, lambda before, batch: (before, "whole"), compile_step)
    shapes = [step("state", rollouts([n] * 16, 24))[1] for n in (12, 11, 24, 12, 6)]
    assert shapes == [(4, 48), (4, 48), "whole", (4, 48), (2, 48)]
    assert len(compiled) == 2
