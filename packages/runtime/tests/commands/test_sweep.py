"""A sweep trains each point with each seed, goes on where it was, survives a point that fails, and ranks them."""

import json
import os

import pytest
from kanawa.errors import UsageError
from kanawa_runtime.commands.sweep import RECORD, Sweep, parse_grid, parse_seeds, read_sweep, write_ranking
from kanawa_runtime.report.ranking import rank


def finished(folder, loss, outcome="done", **step):
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    events = [
        {"event": "run_started", "attempt": 1, "total_steps": 2},
        {"event": "step", "attempt": 1, "step": 2, "loss": 9.0} | step,
        {"event": "eval", "attempt": 1, "step": 2, "loss": loss},
        {"event": "run_ended", "attempt": 1, "step": 2, "outcome": outcome},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learner.schedule.peak=1e-3,3e-3", ("learner.schedule.peak", ["1e-3", "3e-3"])),
        ('services=[],["tensorboard", "wandb"]', ("services", ["[]", '["tensorboard", "wandb"]'])),
        ('model.axes={"a": 1, "b": 2}, {}', ("model.axes", ['{"a": 1, "b": 2}', "{}"])),
    ],
)
def test_commas_inside_of_brackets_separate_no_values(text, expected):
    assert parse_grid(text) == expected


@pytest.mark.parametrize("text", ["peak", "=1,2", "peak=", "peak=1,,2", "peak=1,1"])
def test_a_grid_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="expected PATH=A,B"):
        parse_grid(text)


def test_seeds_are_a_count_or_a_list():
    assert parse_seeds("3") == [0, 1, 2]
    assert parse_seeds("5, 7") == [5, 7]
    for text in ("", "0", "1,1", "-2", "1.5"):
        with pytest.raises(UsageError, match="--seeds"):
            parse_seeds(text)


def test_names_tell_points_and_seeds_apart():
    sweep = Sweep("x", {"a.peak": ["1"], "b.rate": ["2", "3"]}, [0, 1])
    assert [sweep.name_of(point, 0) for point in sweep.points()] == ["peak=1,rate=2,seed=0", "peak=1,rate=3,seed=0"]
    same = Sweep("x", {"a.peak": ["1"], "b.peak": ["2/3"]}, [0])
    assert [same.name_of(point, 4) for point in same.points()] == ["a.peak=1,b.peak=2_3,seed=4"]


def test_a_run_gets_what_all_have_in_common_then_its_point_then_its_seed():
    sweep = Sweep("x", {"a": ["1"]}, [3], on="cpu-2", steps=5, modify=["lora"], set=["b=2"])
    words = [
        "x",
        "--on",
        "cpu-2",
        "--steps",
        "5",
        "--modify",
        "lora",
        "--set",
        "b=2",
        "--set",
        "a=1",
        "--set",
        "seed=3",
    ]
    assert sweep.arguments({"a": "1"}, 3) == words


def test_points_are_ranked_by_the_mean_over_seeds(tmp_path, capsys):
    runs = {
        name: finished(tmp_path / name, loss) for name, loss in {"a0": 2.0, "a1": 4.0, "b0": 2.5, "b1": 2.5}.items()
    }
    failed = finished(tmp_path / "c0", 1.0, outcome="failed")
    points = [
        ({"rate": "1"}, [runs["a0"], runs["a1"]]),
        ({"rate": "2"}, [runs["b0"], runs["b1"]]),
        ({"rate": "3"}, [failed, tmp_path / "c1"]),
    ]
    ranked = rank(points)
    assert [one.values["rate"] for one in ranked] == ["2", "1", "3"]
    assert (ranked[1].mean, ranked[1].deviation) == (3.0, pytest.approx(2**0.5))
    assert ranked[2].mean is None
    assert ranked[2].missing == {"c0": "failed at step 2", "c1": "not started"}
    write_ranking(ranked)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rate", "mean", "deviation", "runs"]
    assert lines[1].split() == ["2", "2.5", "0", "2"]
    assert "c0: failed at step 2, c1: not started" in lines[3]
    with pytest.raises(UsageError, match="no run has the figure 'los'; there are"):
        rank(points, "los")


def test_a_pipe_as_the_record_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / RECORD)
    with pytest.raises(UsageError, match=r"sweep\.json is a pipe, expected an ordinary file"):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grid", "seed=1,2"), "seeds come from --seeds"),
        (("--seeds", "2", "--set", "seed=7"), "seeds come from --seeds"),
        (("--grid", "steps=1,2", "--set", "steps=3"), "steps is set by --grid and by --set"),
    ],
)
def test_what_the_grid_and_something_else_set_is_refused(words, said, tmp_path, capsys):
    from kanawa.cli.main import main

    assert main(["sweep", "quickstart", *words, "--run", str(tmp_path / "runs")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_runs_that_learn_from_rewards_are_ranked_by_the_highest(tmp_path):
    rewards = {"low": 0.25, "high": 0.75, "middle": 0.5}
    # The loss of such a run says nothing; here it would say the opposite.
    points = [({"is": name}, [finished(tmp_path / name, value, reward=value)]) for name, value in rewards.items()]
    points.append(({"is": "failed"}, [finished(tmp_path / "failed", 0.1, outcome="failed", reward=1.0)]))
    for ranked in (rank(points), rank(points, "reward")):
        assert [one.values["is"] for one in ranked] == ["high", "middle", "low", "failed"]
        assert [one.mean for one in ranked] == [0.75, 0.5, 0.25, None]
    assert rank(points, "eval_loss")[0].values["is"] == "low"
