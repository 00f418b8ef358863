"""The execution plan: in force where it is used, part of what compiled functions are keyed by."""

import dataclasses

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from kanawa.arrays.plan import KernelPolicy
from kanawa.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Way:
    operation: str
    name: str


def test_outside_of_use_plan_the_default_is_in_force():
    assert kn.current_plan() == kn.ExecutionPlan()
    assert kn.current_plan().precision.compute == "float32"


def test_plans_nest_and_end():
    outer, inner = kn.ExecutionPlan(platform="tpu"), kn.ExecutionPlan(platform="gpu")
    with kn.use_plan(outer) as used:
        assert used is outer
        with kn.use_plan(inner):
            assert kn.current_plan() is inner
        assert kn.current_plan() is outer
    assert kn.current_plan() == kn.ExecutionPlan()


def test_an_error_inside_ends_it_too():
    with pytest.raises(ZeroDivisionError), kn.use_plan(kn.ExecutionPlan(platform="tpu")):
        1 / 0  # noqa: B018
    assert kn.current_plan().platform is None


def test_a_compiled_function_never_serves_another_plan():
    """A plan in an ordinary context variable would be read when tracing, and the cached trace served ever after."""
    traces = []

    @jax.jit
    def f(x):
        traces.append(kn.current_plan().precision.compute)
        return x.astype(kn.current_plan().precision.compute)

    x = jnp.ones(2)
    wide, narrow = kn.ExecutionPlan(), kn.ExecutionPlan(precision=kn.Precision("bfloat16"))
    dtypes = []
    for plan in (wide, narrow, wide, dataclasses.replace(narrow)):
        with kn.use_plan(plan):
            dtypes.append(str(f(x).dtype))
    assert dtypes == ["float32", "bfloat16", "float32", "bfloat16"]
    assert traces == ["float32", "bfloat16"], "an equal plan finds the compiled program again"


def test_it_is_hashable_with_everything_in_it():
    plan = kn.ExecutionPlan(
        param_rules=(("embed", ("fsdp",)),),
        kernels=KernelPolicy((("attention", "attention.gpu.cudnn"),), require_fused=True),
        distributed=(Way("attention", "ring"),),
    )
    assert hash(plan) == hash(dataclasses.replace(plan))
    assert plan != dataclasses.replace(plan, purpose="decode")


def test_the_first_way_to_run_an_operation_counts():
    plan = kn.ExecutionPlan(distributed=(Way("experts", "a"), Way("attention", "ring"), Way("attention", "ulysses")))
    assert plan.distributed_over_shards("attention").name == "ring"
    assert plan.distributed_over_shards("experts").name == "a"
    assert plan.distributed_over_shards("loss") is None


@pytest.mark.parametrize(("field", "name"), [("compute", "int8"), ("accumulate", "floatt32"), ("compute", "")])
def test_precision_takes_floating_dtypes_only(field, name):
    with pytest.raises(ConfigError, match=rf"precision.{field} is '{name}', which is not a floating dtype that"):
        kn.Precision(**{field: name})


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_precision_takes_every_floating_dtype(name):
    assert kn.Precision(name).compute == name
