"""The verb: several targets of which one fails, JAX kept off accelerators, files, and the ways to ask wrongly."""

import argparse
import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import jax
import pytest
from kanawa.errors import CompositionError, UsageError
from kanawa_parallel.plan import command as verb
from kanawa_parallel.plan.compiled.compilation import compile_program
from kanawa_parallel.plan.programs.request import PlanRequest
from xla_options import xla_flags


def arguments(*words):
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    return parser.parse_args(words)


def test_one_target_as_json_with_price_picture_and_dump(job, tmp_path, capsys):
    (tmp_path / "prices.toml").write_text("currency = 'EUR'\nbox = 3.6\n")
    words = ["plan-job", "--on", "box-2", "--json", "--prices", str(tmp_path / "prices.toml")]
    words += ["--picture", str(tmp_path / "mesh.svg"), "--dump", str(tmp_path / "texts")]
    assert verb.run(arguments(*words)) == 0
    plan = json.loads(capsys.readouterr().out)
    seconds, tokens = plan["step_seconds"], job.ROWS * job.LENGTH
    assert plan["cost_per_million_tokens"] == pytest.approx(3.6 * 2 * seconds / 3600 / (tokens / 1e6))
    assert plan["currency"] == "EUR"
    names = {node.text for node in ElementTree.parse(tmp_path / "mesh.svg").iter() if node.text}
    assert {"plan-job on box-2", "stack.layer.kernel", "table"} <= names
    assert list((tmp_path / "texts" / "box-2").glob("*after_optimizations.txt"))


def test_text_for_a_person(job, capsys):
    assert verb.run(arguments("plan-job", "--on", "box-2")) == 0
    assert "plan-job train_step on box-2: 2 devices (2 chips), mesh fsdp 2" in capsys.readouterr().out


def test_a_target_that_fails_leaves_the_others_plans(job, tmp_path, monkeypatch):
    """Each target has a process of its own: eight devices are refused there, after everything was composed."""
    plan = str(tmp_path)
    tests = os.path.dirname(__file__)
    folders = [plan, os.path.join(tests, "workloads"), os.path.join(os.path.dirname(tests), "pipeline")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "XLA_FLAGS": xla_flags()}
    environment["JAX_NUM_CPU_DEVICES"] = "8"
    command = [sys.executable, "-m", "kanawa.cli", "plan", "plan-job", "--on", "box-8,box-2", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    bad, good = json.loads(done.stdout)
    assert (bad["target"], good["target"]) == ("box-8", "box-2")
    assert "failed (exit code 2)" in bad["error"] and "eight devices are one too many" in bad["error"]
    assert good["fits"] and good["step_seconds"] > 0


def test_what_is_wrong_with_any_target_is_said_of_all_before_anything_compiles(job):
    with pytest.raises(CompositionError) as refused:
        PlanRequest("plan-job", [], ["batch_size=6"]).composed(["bx-4", "box-5", "box-12"])
    problems = "\n".join(refused.value.problems)
    assert "--on bx-4: unknown device 'bx' in target 'bx-4'; did you mean 'box'" in problems
    assert "--on box-5" in problems and "batch_size" in problems and "fsdp=5" in problems
    assert "--on box-12" in problems and "12 chips are not a whole number of hosts" in problems


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ([], UsageError, "plan needs a target: --on DEVICE-COUNT"),
        (["--on", " , "], UsageError, "plan needs a target"),
        (["--on", "box-2", "--prices", "/nowhere.toml"], UsageError, "/nowhere.toml.*expected device names to prices"),
        (["--on", "box-2", "--picture", "."], UsageError, r"--picture \. is a folder, expected a file such"),
    ],
)
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_ways_to_ask_wrongly(job, words, error, said):
    with pytest.raises(error, match=said):
        verb.run(arguments("plan-job", *words))


def test_jax_stays_on_the_processor_unless_the_user_says_otherwise(monkeypatch):
    before = jax.config.jax_platforms
    try:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        verb._keep_off_accelerators()
        assert os.environ["JAX_PLATFORMS"] == jax.config.jax_platforms == "cpu"
        monkeypatch.setenv("JAX_PLATFORMS", "cpu,abacus")
        verb._keep_off_accelerators()
        assert os.environ["JAX_PLATFORMS"] == "cpu,abacus"
    finally:
        jax.config.update("jax_platforms", before)


class Alone:
    """A backend whose compiler has one device: this processor's last."""

    @staticmethod
    def devices():
        return jax.devices("cpu")[-1:]


def test_a_single_chip_is_compiled_for_itself_and_not_for_this_process(job, monkeypatch):
    """Without a mesh JAX would take this process's first device, whose compiler refuses the target's options."""
    from kanawa.plugins import hookimpl, host

    class Backend:
        @hookimpl(tryfirst=True)
        def kanawa_topology(self, target):
            return Alone.devices() if target.device.name == "box" else None

    host().register(Backend(), "one-device")
    (composition,) = PlanRequest("plan-job").composed(["box-1"])
    compilation = compile_program(composition, "train_step")
    assert list(compilation.devices) == Alone.devices()
    shardings = jax.tree.leaves(compilation.executable.input_shardings)
    assert {device for sharding in shardings for device in sharding.device_set} == set(Alone.devices())
