"""What `train --profile` wrote, `profile` explains: by the run's own modules, with the planner's estimate beside."""

import pytest

RECORDED = "3:5"


@pytest.fixture(scope="module")
def profiled(fresh_installation):
    """An installation with a run of which three steps were recorded."""
    made = fresh_installation()
    done = made.run("train", "tiny-lm", "--run", "run", "--steps", "6", "--profile", f"steps={RECORDED}")
    assert done.returncode == 0, done.stderr
    assert "kanawa profile" in done.stderr
    return made


def test_the_time_is_that_of_the_models_modules(profiled):
    times = profiled.json("profile", "run", "--on", "cpu")
    assert times["program"] == "train_step"
    assert times["steps"] >= 3
    assert any(path.startswith("model.layer") for path in times["by_module"])
    assert sum(times["by_kind"].values()) == pytest.approx(sum(times["by_module"].values()))
    planned = {row["path"] for row in times["plan"]["modules"]}
    assert planned & set(times["by_module"])


def test_a_run_that_recorded_nothing_says_how(profiled):
    done = profiled.run("train", "tiny-lm", "--run", "other", "--steps", "1")
    assert done.returncode == 0, done.stderr
    refused = profiled.run("profile", "other")
    assert refused.returncode == 2
    assert "--profile steps=" in refused.stderr
