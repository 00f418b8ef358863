"""Schedule tables: every microbatch passes every stage in order, and few are in flight."""

import pytest
from pipeline_schedules import gpipe, one_forward_one_backward, zero_bubble

SCHEDULES = [
    gpipe(4, 8),
    gpipe(4, 8, rounds=2),
    gpipe(3, 3, rounds=4),
    gpipe(4, 3, rounds=2),
    zero_bubble(4, 6),
    zero_bubble(4, 2),
    one_forward_one_backward(4, 8),
    one_forward_one_backward(2, 3),
    one_forward_one_backward(1, 2),
    one_forward_one_backward(4, 11, rounds=3),
    one_forward_one_backward(4, 3, rounds=2),
    zero_bubble(3, 7, rounds=2),
    zero_bubble(4, 9, rounds=2, paired=True),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.name}-{s.stages}-{s.microbatches}-{s.rounds}")
def test_work_is_complete_and_in_order(schedule):
    ticks = {}
    for tick, row in enumerate(schedule.table):
        for stage, works in enumerate(row):
            for order, work in enumerate(works):
                key = (work.kind, work.microbatch, work.round, stage)
                assert key not in ticks
                ticks[key] = (tick, order)
    kinds = 3 if schedule.name in ("zero-bubble", "dualpipe") else 2
    assert len(ticks) == kinds * schedule.stages * schedule.microbatches * schedule.rounds
    path = [(r, s) for r in range(schedule.rounds) for s in range(schedule.stages)]
    for micro in range(schedule.microbatches):
        forward = [ticks["forward", micro, *at] for at in path]
        backward = [ticks["backward", micro, *at] for at in reversed(path)]
        assert all(a[0] < b[0] for a, b in zip(forward, forward[1:], strict=False))
        assert all(a[0] < b[0] for a, b in zip(backward, backward[1:], strict=False))
        assert forward[-1] < backward[0]
        if kinds == 3:
            assert all(ticks["weights", micro, *at] > ticks["backward", micro, *at] for at in path)


def test_1f1b_keeps_inputs_for_the_stages_not_for_the_microbatches():
    assert gpipe(4, 32).in_flight == 32
    assert one_forward_one_backward(4, 32).in_flight == 2 * 4 - 1
