"""Options are tried on a real compiler; what it refuses is left out with its reason."""

import logging

import jax
import pytest
from jax.errors import JaxRuntimeError
from kanawa.composition import Composition, parse_target
from kanawa.composition.compiler_options import accepted_options, checked, empty_program, recommended
from kanawa.composition.environment import environment
from kanawa.config import Configurable
from kanawa.contracts import ExecutionConfig, PrecisionConfig
from kanawa.errors import PluginError
from kanawa.plugins import PluginHost, hookimpl, host, set_host

GOOD = {"xla_cpu_enable_fast_math": True}
BAD = {"xla_no_such_option": 1}


def compile_with(options):
    return empty_program(jax.devices()[:1]).compile(compiler_options=options)


class Backend:
    """Contributes options to every device."""

    def __init__(self, options):
        self.options = options

    @hookimpl
    def kanawa_compiler_options(self, device, purpose):
        return dict(self.options)


@pytest.fixture
def backends():
    """Registers backends with the given options on a host of their own."""
    before = host()

    def register(*options):
        found = PluginHost(discover=list)
        for number, one in enumerate(options):
            found.register(Backend(one), f"backend{number}")
        set_host(found)

    yield register
    set_host(before)


class Job(Configurable):
    class Config(Configurable.Config):
        precision: PrecisionConfig = PrecisionConfig()
        execution: ExecutionConfig = ExecutionConfig()


def composed(**execution):
    return Composition("job", Job.Config(execution=ExecutionConfig(**execution)), parse_target("cpu"))


def test_an_unknown_option_is_refused_with_the_compilers_reason():
    found = checked({**GOOD, **BAD}, compile_with)
    assert found.accepted == GOOD
    assert found.refused == {"xla_no_such_option": "No such compile option: 'xla_no_such_option'"}


def test_a_wrong_value_is_refused():
    found = checked({"xla_cpu_enable_fast_math": "perhaps"}, compile_with)
    assert not found.accepted
    assert "perhaps" in found.refused["xla_cpu_enable_fast_math"]


def test_another_failure_is_not_blamed_on_the_options():
    def broken(options):
        message = "RESOURCE_EXHAUSTED: out of memory"
        raise JaxRuntimeError(message)

    with pytest.raises(JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        checked(GOOD, broken)


def test_a_refusal_is_one_warning_line(caplog):
    with caplog.at_level(logging.WARNING):
        assert accepted_options({**GOOD, **BAD}, jax.devices()).accepted == GOOD
    assert caplog.messages == [
        "compiler option xla_no_such_option=1 is left out: No such compile option: 'xla_no_such_option'"
    ]


def test_an_environment_keeps_what_compiles_and_why_the_rest_does_not(backends):
    backends({**GOOD, **BAD})
    found = environment(composed())
    assert found.compiler_options == GOOD
    assert list(found.refused_options) == ["xla_no_such_option"]
    described = environment(composed(), "abstract")
    assert described.compiler_options == {**GOOD, **BAD}


def test_an_option_that_the_user_set_is_never_dropped(backends):
    backends(BAD)
    own = {"xla_no_such_option": 2}
    found = environment(composed(compiler_options=own))
    assert (found.compiler_options, found.refused_options) == (own, {})


def test_backends_that_contradict_each_other_are_named(backends):
    backends({"xla_a": 1}, {"xla_a": 2})
    target = parse_target("cpu")
    with pytest.raises(PluginError, match="backend0 sets compiler option xla_a to 1, .*backend1 to 2"):
        recommended(target, {})
    assert recommended(target, {"xla_a": 3}) == {}
