"""Rollouts drawn by several processes, each with its own engine: the same tokens as one draws, and the same losses."""

import json

import gangs
import pytest

#: Four groups of twelve: with three processes of sixteen rows, groups lie across them.
SIZES = (
    "--set", "batch_size=48", "--set", "rollouts.group_size=12", "--set", "rollouts.engine.max_sequences=48",
    "--set", "rollouts.engine.batch_sizes=[48]", "--set", "rollouts.engine.prefill_rows=[48]",
    "--set", "rollouts.engine.max_batched_tokens=432", "--set", "evaluation.every_steps=2",
    "--set", "rollouts.evaluation_prompts=50", "--set", "rollouts.attempts=2",
)  # fmt: skip
#: Two updates on each batch, a reference, and the next batch drawn meanwhile: all that a checkpoint has to hold.
HARD = (
    "--set", "rollouts.updates=2", "--set", "rollouts.reference=true", "--set", "model.loss.kl=0.05",
    "--set", "rollouts.off_policy=true",
)  # fmt: skip


def trained(nursery, run, processes, steps, *options):
    """Returns the facts of each step, and of each evaluation, after so many processes took the run so far."""
    words = (*SIZES, *options, "--steps", str(steps))
    gang = (
        [gangs.start(nursery, run, 1, *words, experiment="grpo-demo")] if processes == 1
        else gangs.start_gang(nursery, run, *words, processes=processes, devices=processes, experiment="grpo-demo")
    )  # fmt: skip
    codes, err = gangs.finish(*gang)
    assert codes == [0] * processes, err
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    taken = {
        e["step"]: (e["reward"], e["tokens"], e["loss"], e["metrics"]["gradient_norm"])
        for e in events
        if e["event"] == "step"
    }
    held_out = {e["step"]: e["reward"] for e in events if e["event"] == "eval"}
    assert list(taken) == list(range(1, steps + 1))
    return list(taken.values()), held_out


def same(found, wanted):
    """Rewards and counts are those of the same tokens; the rest differs by the order of sums over processes."""
    (steps, held_out), (other_steps, other_held_out) = found, wanted
    assert held_out == other_held_out
    assert [step[:2] for step in steps] == [step[:2] for step in other_steps]
    for step, other in zip(steps, other_steps, strict=True):
        assert step[2:] == pytest.approx(other[2:], rel=1e-5, abs=1e-6)


@pytest.fixture(scope="module")
def alone(nursery, tmp_path_factory):
    return trained(nursery, tmp_path_factory.mktemp("runs") / "run", 1, 2)


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_processes_draw_and_learn_what_one_does(nursery, alone, processes, tmp_path):
    assert len({step[0] for step in alone[0]}) > 1
    same(trained(nursery, tmp_path / "run", processes, 2), alone)


@pytest.mark.nightly
def test_a_gang_that_was_cut_off_repeats_itself_to_the_bit_and_moves_to_one_process(nursery, tmp_path):
    whole = trained(nursery, tmp_path / "whole", 2, 5, *HARD)
    # Between two updates on the same rollouts, whose parameters are gone, as are those the next batch is drawn with.
    cut = trained(nursery, tmp_path / "cut", 2, 3, *HARD)
    again = trained(nursery, tmp_path / "cut", 2, 5, *HARD)
    assert again[0] == whole[0]
    assert again[0][:3] == cut[0]
    trained(nursery, tmp_path / "moved", 2, 3, *HARD)
    moved = trained(nursery, tmp_path / "moved", 1, 5, *HARD)
    assert moved[0][:3] == whole[0][:3]
    same((moved[0], {}), (whole[0], {}))


@pytest.mark.nightly
def test_exact_rollouts_of_a_gang_are_those_of_one_process_and_of_its_step(nursery, tmp_path):
    options = ("--set", "rollouts.exact=true", "--set", "rollouts.attempts=1", "--modify", "accumulate:microbatches=2")
    together = trained(nursery, tmp_path / "gang", 2, 3, *options)
    same(together, trained(nursery, tmp_path / "alone", 1, 3, *options))
    lines = (tmp_path / "gang" / "events.jsonl").read_text().splitlines()
    metrics = [event["metrics"] for event in map(json.loads, lines) if event["event"] == "step"]
    assert [each["loss.sampler_difference_most"] for each in metrics] == [0.0] * 3
