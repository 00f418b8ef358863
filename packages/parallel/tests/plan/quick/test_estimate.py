"""A quick plan against the compiled one of the same program, and what it says it is."""

import jax
import pytest
from kanawa.errors import UsageError
from kanawa_parallel.plan import command as verb
from kanawa_parallel.plan.programs.request import PlanRequest
from kanawa_parallel.plan.quick.estimate import quick_report
from kanawa_parallel.plan.show.render import render

MESHES = ["box-1", "box-2", "box-4"]


def quick(target, *modifiers, program="train_step"):
    (composition,) = PlanRequest("plan-job", modifiers, []).composed([target])
    return quick_report(composition, program)


@pytest.mark.parametrize("target", MESHES)
def test_counts_are_those_of_the_compiled_program(planned, job, target):
    _, compiled = planned(target)
    estimate = quick(target)
    assert estimate.flops_per_device == pytest.approx(compiled.flops_per_device, rel=0.01)
    assert estimate.memory_limit_bytes == compiled.memory_limit_bytes and estimate.fits == compiled.fits
    for kind in ("parameters", "optimizer", "inputs"):
        assert estimate.memory[kind] == compiled.memory[kind]


def test_nothing_is_compiled_and_the_text_says_so(job, monkeypatch):
    def refuse(*_, **__):
        message = "compiled"
        raise AssertionError(message)

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    report = quick("distant-4")
    text = render(report)
    assert report.quick and not report.compiled and report.step_seconds
    assert "ESTIMATED in" in text and "nothing was compiled" in text and "NOT COMPILED" not in text


def test_a_program_that_does_not_fit_has_no_time(job):
    report = quick("tight-2")
    assert not report.fits and report.step_seconds is None and report.mfu is None


def test_what_only_a_compiled_program_has_is_refused(job, tmp_path):
    import argparse

    parser = argparse.ArgumentParser()
    verb.configure(parser)
    with pytest.raises(UsageError, match="--dump: a quick plan compiles nothing"):
        verb.run(parser.parse_args(["plan-job", "--on", "box-2", "--quick", "--dump", str(tmp_path)]))


CASES = [
    ("box-1", ()),
    ("box-1", ("accumulate:microbatches=4",)),
    ("box-2", ()),
    ("box-2", ('mesh:axes={"tensor":2}',)),
    ("box-4", ()),
    ("box-4", ('mesh:axes={"data":4}',)),
]


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    return [order.index(at) for at in range(len(values))]


def test_the_order_by_time_is_nearly_that_of_compiled_plans(planned, job):
    pairs = [(quick(*case[:1], *case[1]).step_seconds, planned(*case[:1], *case[1])[1].step_seconds) for case in CASES]
    estimated, compiled = (ranks(column) for column in zip(*pairs, strict=True))
    count = len(CASES)
    apart = sum((a - b) ** 2 for a, b in zip(estimated, compiled, strict=True))
    assert 1 - 6 * apart / (count * (count**2 - 1)) >= 0.7, pairs
