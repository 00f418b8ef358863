"""`kanawa sweep` trains a grid with several seeds from the command line, once, and ranks what came of it."""


def test_a_grid_is_trained_ranked_and_not_trained_again(installation):
    asked = ("sweep", "tiny-lm", "--grid", "learner.schedule.peak=1e9,1e-3", "--steps", "3")
    done = installation.run(*asked, "--run", "grid")
    # The first point diverges, which doesn't keep the second from its run.
    assert done.returncode == 1, done.stderr
    assert "peak=1e9,seed=0 ended with exit code 1; its log is grid/peak=1e9,seed=0.log" in done.stderr
    folders = sorted(path.name for path in (installation.folder / "grid").iterdir() if path.is_dir())
    assert folders == ["peak=1e-3,seed=0", "peak=1e9,seed=0"]
    sound, diverged = installation.json("sweep", "grid")["points"]
    assert sound["values"] == {"learner.schedule.peak": "1e-3"}
    assert list(sound["scores"]) == ["peak=1e-3,seed=0"]
    assert diverged["missing"]["peak=1e9,seed=0"].startswith("failed at step")
    again = installation.run(*asked, "--run", "grid")
    assert "run 1 of 2" in again.stderr
    assert "run 2 of 2" not in again.stderr
    other = installation.run(*asked[:-1], "4", "--run", "grid")
    assert other.returncode == 2
    assert "has another sweep" in other.stderr


def test_a_path_that_is_none_fails_before_anything_is_trained(installation):
    done = installation.run("sweep", "tiny-lm", "--grid", "learner.pek=1,2", "--run", "grid")
    assert done.returncode == 2
    assert "pek" in done.stderr
    assert not (installation.folder / "grid").exists()
