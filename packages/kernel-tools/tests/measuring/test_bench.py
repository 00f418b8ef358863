"""Measuring kernels: turns, failures, wrong results, and which one is used from then on."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
from kanawa.errors import KernelError
from kanawa.kernels import Kernel, KernelChoice, Verdict
from kanawa.kernels.attention.problem import ATTENTION
from kanawa.kernels.attention.reference import ReferenceAttention
from kanawa.kernels.selection import select
from kanawa_kernel_tools.examples.attention import BASE
from kanawa_kernel_tools.measuring.bench import Measurement, fastest, measure

HERE = __name__
SMALL = dataclasses.replace(BASE, batch=1, q_length=16, kv_length=16, head_dim=8, v_head_dim=8)


class Sized(ReferenceAttention):
    """Right, with sizes to try."""

    name = "attention.cpu.sized"
    platforms = ("cpu",)

    def tunings(self, problem, device):
        return ((("block", 8),), (("block", 3),))

    def apply(self, problem, operands):
        if problem.q_length % self.setting("block", 16):
            raise ValueError(f"block {self.setting('block', 16)} doesn't divide {problem.q_length}")
        return super().apply(problem, operands)


class Wrong(Kernel):
    """Gives the values as they are."""

    name = "attention.cpu.wrong"
    operation = "attention"
    autodiff = True

    def supports(self, problem, device):
        return Verdict(True)

    def forward(self, problem, operands):
        return jnp.repeat(operands["v"], problem.group_size, axis=2), None


class NotANumber(Sized):
    """Right, but for one gradient that isn't the first of what is compared."""

    name = "attention.cpu.nan"
    autodiff = False

    def tunings(self, problem, device):
        return ()

    def forward(self, problem, operands):
        return super().apply(problem, operands), None

    def backward(self, problem, operands, out, residuals, cotangents):
        def apply(floats):
            return ReferenceAttention().apply(problem, {**operands, **floats})

        (grads,) = jax.vjp(apply, {name: operands[name] for name in "qkv"})[1](cotangents)
        return {**grads, "v": grads["v"].at[0, 0].set(jnp.nan)}


def values(*classes):
    return {c.name: f"{HERE}:{c.__name__}" for c in classes}


@pytest.fixture
def measured(install):
    reference = {"attention.any.reference": f"{ReferenceAttention.__module__}:ReferenceAttention"}
    install(a=values(Sized, Wrong) | reference)
    with use_plan(ExecutionPlan(platform="cpu")):
        choice = select(ATTENTION, SMALL).choice
        return choice, measure(choice, seconds=0.0)


def test_every_kernel_and_tuning_is_measured_the_chosen_one_first(measured):
    choice, measurements = measured
    assert measurements[0].kernel == choice.kernel == "attention.cpu.sized"
    assert {(one.kernel, one.tuning) for one in measurements} == {
        ("attention.cpu.sized", ()),
        ("attention.cpu.sized", (("block", 8),)),
        ("attention.cpu.sized", (("block", 3),)),
        ("attention.cpu.wrong", ()),
        ("attention.any.reference", ()),
    }


def test_failures_and_wrong_results_are_told_and_never_used(measured):
    _, measurements = measured
    failures = {(one.kernel, one.tuning): one.failure for one in measurements if one.failure}
    assert failures[("attention.cpu.sized", (("block", 3),))] == "ValueError: block 3 doesn't divide 16"
    assert failures[("attention.cpu.wrong", ())].startswith("differs from attention.any.reference by ")
    assert len(failures) == 2
    assert all((one.seconds or 0) > 0 for one in measurements if not one.failure)
    assert fastest(measurements).failure == ""


def test_the_reference_judges_and_no_gradient_may_be_nan(install):
    class_of = {"attention.any.reference": f"{ReferenceAttention.__module__}:ReferenceAttention"}
    install(a=values(Wrong, NotANumber) | class_of)
    with use_plan(ExecutionPlan(platform="cpu", kernels=KernelPolicy(pins=(("attention", Wrong.name),)))):
        choice = select(ATTENTION, SMALL).choice
        measurements = measure(choice, seconds=0.0)
    assert choice.kernel == measurements[0].kernel == Wrong.name
    failures = {one.kernel: one.failure for one in measurements}
    assert failures[Wrong.name].startswith("differs from attention.any.reference by ")
    assert failures[NotANumber.name].startswith("differs from attention.any.reference by nan")
    assert fastest(measurements).kernel == "attention.any.reference"


def ran(kernel, seconds, temporary_bytes=0):
    return Measurement(kernel, (), seconds, temporary_bytes)


def test_the_first_gives_way_only_to_what_is_clearly_quicker():
    assert fastest([ran("a", 1.00), ran("b", 0.98)]).kernel == "a"
    assert fastest([ran("a", 1.00), ran("b", 0.90)]).kernel == "b"


def test_a_quick_kernel_that_keeps_large_arrays_is_not_used():
    assert fastest([ran("a", 1.0, 2**30), ran("b", 0.1, 2**33)]).kernel == "a"
    assert fastest([ran("a", 1.0, 2**10), ran("b", 0.1, 2**20)]).kernel == "b"


def test_where_nothing_ran_there_is_nothing_to_use():
    assert fastest([Measurement("a", failure="out of memory")]) is None
    assert fastest([]) is None


def test_an_operation_without_examples_is_refused():
    with pytest.raises(KernelError, match="there are no examples for operation 'weaving'"):
        measure(KernelChoice("weaving", "any", "weaving.any.loom", local_problem=SMALL))
