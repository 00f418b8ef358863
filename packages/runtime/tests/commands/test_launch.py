"""`kanawa launch`: what the command line makes of a job, what it writes, and what it refuses."""

import json
import sys

import pytest
import tiny_lm
from kanawa.cli.main import main
from kanawa.config import from_json
from kanawa.plugins import Component, PluginHost, hookimpl, set_host
from kanawa_runtime.launch import Launcher, Status
from kanawa_runtime.launch.local.state import folder_of, held


def launch(capsys, *words):
    code = main(["launch", *words])
    out, err = capsys.readouterr()
    return code, out, err


def job_of(capsys, *words):
    code, out, err = launch(capsys, *words, "--dry-run", "--json")
    assert code == 0, err
    return from_json(json.loads(out)["job"])


def test_a_job_holds_the_command_as_each_process_runs_it(capsys):
    job = job_of(capsys, "local", "tiny-lm", "--processes", "2", "--run", "runs/A_b", "--set", "seed=1", "--steps", "7")
    assert list(job.command) == [
        *["kanawa", "train", "tiny-lm", "--run", "runs/A_b", "--steps", "7", "--set", "seed=1"]
    ]
    assert (job.name, job.target, job.processes_per_host, job.grace_seconds) == ("a-b", "", 2, 120)


def test_the_target_says_how_many_hosts(capsys, monkeypatch):
    # A mesh for eight devices is that of packages which runtime does without.
    monkeypatch.setattr("kanawa_runtime.commands.launch._compose_here", lambda args: None)
    job = job_of(capsys, "slurm", "tiny-lm", "--run", "/s/7b", "--on", "cpu-8", "--hosts", "4", "--env", "A=b=c")
    assert (job.name, job.hosts_per_slice, dict(job.environment)) == ("run-7b", 4, {"A": "b=c"})


def test_grace_is_measured_from_the_run(capsys, tmp_path):
    event = {"event": "checkpoint_committed", "step": 1, "seconds": 100.0, "blocking_seconds": 1.0}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert job_of(capsys, "local", "tiny-lm", "--run", str(tmp_path)).grace_seconds == 115
    assert job_of(capsys, "local", "tiny-lm", "--run", str(tmp_path), "--grace", "7").grace_seconds == 7


def test_files_are_written_without_asking_the_engine(capsys, tmp_path):
    words = ("slurm", "tiny-lm", "--run", "/shared/run", "--on", "cpu", "--dry-run")
    code, out, _ = launch(capsys, *words)
    assert code == 0 and out.startswith("# --- job.sbatch\n#!/bin/bash\n")
    code, out, _ = launch(capsys, *words, "--out", str(tmp_path / "files"))
    assert out == f"wrote {tmp_path / 'files' / 'job.sbatch'}\n"
    assert (tmp_path / "files" / "job.sbatch").read_text().startswith("#!/bin/bash\n")


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_a_dry_run_composes_the_experiment(capsys, launcher):
    words = (launcher, "tiny-lm", "--run", "/shared/run", "--on", "cpu", "--dry-run")
    assert launch(capsys, *words)[0] == 0
    code, out, err = launch(capsys, *words, "--set", "batch_sise=3")
    assert (code, out) == (2, "")
    assert "batch_sise" in err and "batch_size" in err
    assert launch(capsys, launcher, "tiny-ln", "--run", "/r", "--on", "cpu", "--dry-run")[0] == 2


def test_settings_of_an_engine(capsys):
    code, out, _ = launch(capsys, "slurm", "--options")
    assert code == 0 and "settle_seconds" in out
    code, out, _ = launch(capsys, "slurm", "tiny-lm", "--run", "/r", "--on", "cpu", "--dry-run", "--option", "time=30")
    assert "#SBATCH --time=30\n" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slrum", "tiny-lm"], "did you mean 'slurm'"),
        (["local"], "give one EXPERIMENT to run, or one of --status, --logs, --cancel and --follow"),
        (["local", "tiny-lm", "--status", "a"], "give one EXPERIMENT to run, or one of"),
        (["local", "tiny-lm", "--env", "A"], "--env 'A': expected NAME=VALUE"),
        (["local", "tiny-lm", "--env", "A=1", "--env", "A=2"], "--env A is given twice, as '1' and '2'; give it once"),
        (
            ["local", "tiny-lm", "--replicas", "2"],
            "--replicas is of servers: the launchers `deployment` and `ray-serve`",
        ),
        (["ray-serve", "/r", "--on", "cpu", "--steps", "5"], "--steps: of training; a server takes RUN"),
        (["ray-serve", "/r", "--on", "cpu", "--processes", "2"], "--processes: of training; a server takes RUN"),
        (["local", "tiny-lm", "--option", "settle=1"], "settle_seconds"),
        (["local", "tiny-lm", "--processes", "0"], "processes_per_host"),
        (["local", "tiny-lm", "--grace", "0"], "grace_seconds"),
        (["local", "tiny-lm", "--on", "cpu-3", "--processes", "2"], "can't be split among 2 processes; use --on cpu-4"),
        (["local", "tiny-lm", "--on", "h9"], "unknown device 'h9'"),
        (
            ["local", "tiny-lm", "--queue", "q", "--spares", "1"],
            "queue 'q' means nothing to processes; leave --queue out",
        ),
        (["slurm", "tiny-lm", "--run", "/r"], "slurm gives it what is asked for, and no accelerator unasked"),
        (["local", "--status", "/no/such/run"], "there is no job in /no/such/run"),
    ],
)
def test_what_is_refused_and_why(capsys, words, said):
    code, _, err = launch(capsys, *words)
    assert code in (1, 2)
    assert said in err


def test_an_experiment_that_can_t_be_composed_is_not_submitted(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", tiny_lm.FOLDER)
    code, _, err = launch(capsys, "slurm", "tiny-lm", "--run", "/shared/run", "--on", "cpu", "--set", "no.such=1")
    assert code == 2
    assert "nothing was submitted, because the experiment can't be composed: path 'no.such'" in err
    assert not list(tmp_path.iterdir())


# --- another launcher ------------------------------------------------------------------------------------------------


class PaperLauncher(Launcher):
    """Writes jobs down; they are done the moment they are submitted."""

    class Config(Launcher.Config):
        ink: str = "blue"

    def render(self, job):
        return {"paper.txt": f"{job.name} in {self.config.ink}\n"}

    def submit(self, job, folder):
        return (folder / "paper.txt").read_text().split()[0]

    def status(self, name):
        return Status("done", exit_code=0)

    def logs(self, name):
        return f"{name} said nothing"

    def cancel(self, name):
        """There is nothing to stop."""


class Paper:
    @hookimpl
    def kanawa_components(self):
        return [Component("launchers", "paper", f"{__name__}:PaperLauncher")]


def test_a_stranger_s_engine_is_one_class(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, PaperLauncher.__module__, sys.modules[__name__])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", tiny_lm.FOLDER)
    host = PluginHost()
    host.register(Paper(), "paper")
    before = set_host(host)
    try:
        words = ("paper", "tiny-lm", "--run", "/r/seven", "--on", "cpu", "--option", "ink=red")
        assert launch(capsys, *words, "--dry-run")[1] == "# --- paper.txt\nseven in red\n"
        code, out, err = launch(capsys, *words, "--watch")
        assert (code, err.splitlines()[-1]) == (0, "seven: done, exit code 0")
        assert launch(capsys, "paper", "--logs", "seven")[1] == "seven said nothing\n"
    finally:
        set_host(before)


def test_what_is_of_a_run_is_passed_on(capsys):
    words = ["--branch-from", "runs/a@3", "--leave-out", "4:5", "--eval-data", "a.txt", "--eval-data", "b=b.txt"]
    command = list(job_of(capsys, "local", "tiny-lm", "--run", "runs/b", *words).command)
    assert command == ["kanawa", "train", "tiny-lm", "--run", "runs/b", *words]


def test_what_a_gang_would_refuse_is_refused_before_processes_start(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", tiny_lm.FOLDER)
    words = ("tiny-lm", "--run", str(tmp_path / "run"), "--set", "no.such=1", "--processes", "2")
    code, _, err = launch(capsys, "local", *words)
    assert code == 2 and "nothing was submitted, because the experiment can't be composed: path 'no.such'" in err
    assert not list(tmp_path.iterdir())


def test_a_job_that_runs_is_not_started_again(capsys, tmp_path):
    with held(folder_of(tmp_path)):
        code, _, err = launch(capsys, "local", "tiny-lm", "--run", str(tmp_path), "--set", "no.such=1")
    assert code == 1 and f"{tmp_path} is being run by another `kanawa launch local`" in err


def test_a_local_job_of_a_run_at_an_address_makes_no_folder_of_that_name(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))
    place = folder_of("s3://bucket/run")
    assert place.is_relative_to(tmp_path / "cache") and place == folder_of("s3://bucket/run/")
    with held(place):
        pass
    code, _, err = launch(capsys, "local", "--status", "s3://bucket/run")
    assert code == 1 and "there is no job" in err
    assert not (tmp_path / "s3:").exists()
