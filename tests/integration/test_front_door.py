"""A whole story of `import kanawa as kn` in one process: experiment, plan, train, open, generate, evaluate, report."""

import json
import pathlib
import subprocess
import sys
import textwrap

import jax
import kanawa as kn
import pytest
from xla_options import xla_flags

SMALL = {"batch_size": 2, "data.sequence_length": 32, "evaluation.final_batches": 1, "steps": 2}
SMALL |= {"model.stack.num_layers": 2}


@pytest.fixture(scope="module")
def experiment():
    return kn.experiment("quickstart", set=SMALL)


@pytest.fixture(scope="module")
def run(experiment, tmp_path_factory):
    return kn.train(experiment, run=tmp_path_factory.mktemp("story") / "run", on="cpu", progress=False)


def test_a_config_is_shown_changed_and_explained(experiment):
    changed = kn.show(experiment, modify="moe:num_experts=4")
    assert "model.stack.layer.feed_forward" in {change.path for change in changed.diff(experiment)}
    assert changed.why("model.stack.layer.feed_forward")[-1].set_by == "modifier moe"
    assert "steps: 2" in str(changed).splitlines()


def test_kernels_are_records(experiment):
    attention = [choice for choice in kn.kernels(experiment, on="h100-2") if choice.operation == "attention"]
    assert {choice.kernel.split(".")[1] for choice in attention} <= {"gpu", "any"}
    assert kn.kernels(experiment)[0].as_json().keys() >= {"operation", "problem", "kernel", "refused"}


def test_a_plan_is_a_record_and_leaves_this_process_alone(experiment):
    devices = jax.device_count()
    quick = kn.plan(experiment, on="h100-2", quick=True)
    (compiled,) = kn.plan(experiment, on=["cpu"])
    for plan, target in ((quick, "h100-2"), (compiled, "cpu")):
        assert (plan.experiment, plan.target, plan.fits) == ("quickstart", target, True)
        record = plan.as_json()
        assert {key: getattr(plan, key) for key in ("mfu", "mesh", "devices", "step_seconds")}.items() <= record.items()
        assert json.loads(json.dumps(record))["kernels"]
    assert (quick.compiled, compiled.compiled) == (False, True)
    assert str(compiled).startswith("quickstart train_step on cpu: 1 device")
    assert repr(compiled).startswith("Plan('quickstart', on='cpu', fits=True, step_seconds=")
    assert jax.device_count() == devices


def test_a_plan_of_a_config_that_has_no_name(experiment):
    cfg = experiment.config.clone(batch_size=4)
    assert kn.plan(cfg, on="cpu", quick=True).tokens_per_step == 4 * 32
    # Rows that two devices don't divide take turns in two stages; so few layers make no stages for sixty-four devices.
    assert kn.plan(cfg.set(batch_size=3), on="h100-2", quick=True).mesh == {"stage": 2}
    with pytest.raises(kn.KanawaError, match="batch_size is 3, and no mesh splits"):
        kn.plan(cfg.set(batch_size=3), on="h100-64", quick=True)


def test_a_run_is_trained_opened_and_used(run, tmp_path):
    assert (run.outcome.kind, run.step, len(run.losses)) == ("done", 2, 2)
    opened = kn.open(run.directory)
    one, two = opened.generate(["def", "class"], max_tokens=4, temperature=0.0)
    assert (one.prompt, len(one.token_ids), two.prompt) == ("def", 4, "class")
    assert one.text == run.generate("def", max_tokens=4, temperature=0.0).text
    (last,) = [event for event in run.events if event["event"] == "eval" and event["final"]]
    # The README's page evaluates on all of the held-out split.
    (tmp_path / "some.txt").write_text(pathlib.Path(json.__file__).read_text())
    some = opened.evaluate(data=str(tmp_path / "some.txt"))
    assert some.nats_per_byte == pytest.approx(last["nats_per_byte"], rel=0.2)
    assert opened.report().read_text().startswith("<!doctype html>")
    predict = jax.jit(kn.functional(opened.model, method="predict"))
    logits, _ = predict(opened.params, {}, jax.numpy.ones((1, 4), "int32"))
    assert logits.shape == (1, 4, opened.config.model.vocab_size)


@pytest.mark.nightly
def test_an_engine_generates_and_stops(run):
    with run.engine(max_sequences=2, max_length=64) as engine:
        outputs = engine.generate([[5, 17, 4], [9, 2]])
        assert [len(output.token_ids) > 0 for output in outputs] == [True, True]
    assert not engine.is_alive


def test_a_script_shows_progress_and_keeps_its_stdout(tmp_path):
    program = f"""
    import kanawa as kn
    run = kn.train("quickstart", run="run", set={SMALL!r})
    print(run.outcome.kind)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={**_environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "done\n"
    assert "step 2/2" in done.stderr


def _environment():
    import os

    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
