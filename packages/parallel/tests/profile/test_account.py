"""A trace that this process records is accounted for by module, kind and phase; waits for the host are found."""

import os

import jax
import jax.numpy as jnp
import pytest
from kanawa.errors import UsageError
from kanawa_parallel.plan.read.attribution import OUTSIDE
from kanawa_parallel.plan.read.hlo import HloModule
from kanawa_parallel.profile.account import account
from kanawa_parallel.profile.trace import Event, HostCall, Trace, find_trace, read_trace

PATHS = frozenset({"stack", "stack.heavy", "stack.light"})
STEPS = 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace of three runs of a gradient, in whose one scope nearly all work is."""

    def loss(x):
        with jax.named_scope("stack"):
            with jax.named_scope("heavy"):
                for _ in range(4):
                    x = jnp.tanh(x @ x)
            with jax.named_scope("light"):
                return (x * 2).sum()

    step = jax.jit(lambda x: x - 0.1 * jax.grad(loss)(x))
    x = step(jnp.eye(256))
    x.block_until_ready()
    run = tmp_path_factory.mktemp("run")
    with jax.profiler.trace(str(run / "profile")):
        for _ in range(STEPS):
            x = step(x)
            x.block_until_ready()
    return run


@pytest.fixture(scope="module")
def times(recorded):
    """What the trace says."""
    return account(read_trace(find_trace(recorded)), PATHS)


def test_every_step_is_counted(times):
    assert times.steps == STEPS
    assert times.devices == 1
    assert 0 < times.busy_seconds <= times.step_seconds


def test_time_belongs_to_the_modules_whose_work_it_is(times):
    assert set(times.by_module) <= {"model.stack.heavy", "model.stack.light", "model.stack", OUTSIDE, "(compiler)"}
    assert times.by_module["model.stack.heavy"] > 0.5 * sum(times.by_module.values())


def test_matmuls_and_the_backward_pass_are_told_apart(times):
    assert times.by_kind["matmuls"] > 0
    assert times.by_phase["backward"] > 0
    assert times.by_phase["forward"] > 0


def test_kinds_and_phases_add_up_to_the_modules(times):
    total = sum(times.by_module.values())
    assert sum(times.by_kind.values()) == pytest.approx(total)
    assert sum(times.by_phase.values()) == pytest.approx(total)


def test_a_gap_is_charged_to_what_the_host_was_doing(tmp_path):
    def ran(name, start, end):
        return Event(name, "jit_step", "1" if start < 2e6 else "2", "cpu", start, end - start, end)

    calls = [HostCall("run.py:10 main", 0, 6e6), HostCall("data.py:3 read", 1e6, 5e6), HostCall("sleep", 2e6, 4e6)]
    trace = Trace(tmp_path, [ran("a", 0, 1e6), ran("b", 5e6, 6e6)], [("jit_step", HloModule({}, ""))], calls)
    times = account(trace, PATHS)
    assert times.steps == 2
    assert times.idle_share == pytest.approx(4 / 6)
    assert [(gap.host, gap.seconds) for gap in times.gaps] == [("data.py:3 read > sleep", pytest.approx(4e-3))]


def test_a_run_without_a_trace_says_how_to_record_one(tmp_path):
    with pytest.raises(UsageError, match="--profile steps=10:20"):
        find_trace(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x0f" * 40], ids=["empty", "no trace"])
def test_a_broken_trace_is_an_error_with_its_name(tmp_path, content):
    file = tmp_path / "vm.xplane.pb"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"vm\.xplane\.pb"):
        read_trace(file)


def test_a_pipe_as_the_trace_is_not_waited_for(tmp_path):
    file = tmp_path / "host.xplane.pb"
    os.mkfifo(file)
    with pytest.raises(UsageError, match="is a pipe, expected an ordinary file"):
        read_trace(file)
