"""Everything that is wrong with a command is told at once, with near names, and exits with 2."""

import kanawa as kn
import pytest
from kanawa.cli.main import main
from kanawa.composition.experiment import compose
from kanawa.contracts import ExecutionConfig
from kanawa.errors import CompositionError, TargetError, UnknownNameError
from kanawa.plugins import Command, hookimpl, host


class Double(kn.Modifier):
    """Doubles the steps."""

    class Config(kn.Modifier.Config):
        times: int = 2

    def __call__(self, cfg):
        return cfg.set(steps=cfg.steps * self.config.times)


class Job(kn.Config):
    """Enough of a workload to have steps and kernels."""

    steps: int = 1
    width: int = kn.REQUIRED
    execution: ExecutionConfig = ExecutionConfig()


@pytest.fixture
def double(fake_distribution):
    fake_distribution("fake-double", {"kanawa.modifiers": [f"double = {Double.__module__}:Double"]})


def test_all_steps_tell_what_is_wrong_with_their_own_input(double):
    with pytest.raises(CompositionError) as error:
        compose(
            Job(),
            target="cpu-x",
            modifiers=["dubble", "double:time=3", "double:times=3"],
            overrides=["stepps=1", "execution.kernels.atention=attention.any.reference", "steps=many"],
        )
    told = str(error.value)
    assert len(error.value.problems) == 7, told
    for part in (
        "target 'cpu-x' can't be read",
        "did you mean 'double'?",
        "no field 'time'; did you mean 'times'?",
        "no field 'stepps'; did you mean 'steps'?",
        "steps=many: expected int",
        "Job: width",
        "Job: execution.kernels: no installed kernel computes an operation 'atention'; did you mean 'attention'?",
    ):
        assert part in told, part


def test_a_single_error_keeps_its_kind(double):
    with pytest.raises(TargetError):
        compose(Job(width=1), target="cpu-x")
    with pytest.raises(UnknownNameError, match="did you mean 'double'"):
        compose(Job(width=1), modifiers=["dubble"])
    assert compose(Job(width=1), modifiers=["double", "double:times=3"]).config.steps == 6


def test_an_unknown_experiment_does_not_hide_the_rest(double):
    with pytest.raises(CompositionError) as error:
        compose("nothing-like-it", target="cpu-x", modifiers=["dubble"])
    assert len(error.value.problems) == 3


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ("attention.any.referense", "no installed kernel of attention is called 'attention.any.referense'; did you"),
        ("grouped_matmul.any.reference", "no installed kernel of attention is called 'grouped_matmul.any.reference'"),
    ],
)
def test_an_unknown_kernel_pin_is_told_before_tracing(pin, said):
    with pytest.raises(CompositionError, match="execution.kernels") as error:
        compose(Job(width=1), overrides=[f'execution.kernels={{"attention": "{pin}"}}'])
    assert said in str(error.value)
    assert error.value.exit_code == 2


def test_an_error_under_tracing_is_told_without_jaxs_footer(fake_distribution, capsys):
    def pinned(args):
        import jax
        import jax.numpy as jnp
        from kanawa.arrays.plan import ExecutionPlan, KernelPolicy, use_plan
        from kanawa.kernels.grouped_matmul import grouped_matmul

        plan = ExecutionPlan(kernels=KernelPolicy((("grouped_matmul", "grouped_matmul.any.referense"),)))
        with use_plan(plan):
            jax.jit(grouped_matmul)(jnp.ones((2, 2)), jnp.ones((1, 2, 2)), jnp.array([2]))
        return 0

    class Plugin:
        @hookimpl
        def kanawa_commands(self):
            return [Command("pin", "pins a kernel", lambda parser: None, pinned)]

    host().register(Plugin(), "pinning")
    assert main(["pin"]) == 2
    told = capsys.readouterr().err
    assert "did you mean 'grouped_matmul.any.reference'" in told
    assert "JAX" not in told


def test_the_command_line_counts_problems_and_sets_them_apart(double, capsys):
    assert main(["show", "nothing-like-it", "--on", "cpu-x", "--modify", "dubble"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("kanawa: error: 3 problems:\n- target 'cpu-x' can't be read")
    assert "\n- no installed distribution provides 'dubble'" in told
