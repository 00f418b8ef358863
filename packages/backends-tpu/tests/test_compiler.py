"""Options differ by purpose, and `checked` asks a real compiler."""

import jax
import pytest
from jax.errors import JaxRuntimeError
from sashimono.compose.target import parse_target
from sashimono_backends_tpu import plugin
from sashimono_backends_tpu.compiler import checked


def lowered() -> jax.stages.Lowered:
    return jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((4,), "float32"))


def test_training_asks_for_more_than_decoding():
    device = parse_target("v5p-8").device
    train = plugin.sashimono_compiler_options(device, "train")
    decode = plugin.sashimono_compiler_options(device, "decode")
    assert set(decode) < set(train)
    assert train is not plugin.sashimono_compiler_options(device, "train")


def test_other_devices_get_no_options():
    assert plugin.sashimono_compiler_options(parse_target("cpu").device, "train") is None


def test_an_unknown_option_is_refused_with_the_compilers_reason():
    program = lowered()
    options = {"xla_cpu_enable_fast_math": True, "xla_no_such_option": 1}
    found = checked(options, lambda o: program.compile(compiler_options=o))
    assert found.accepted == {"xla_cpu_enable_fast_math": True}
    assert found.refused == {"xla_no_such_option": "No such compile option: 'xla_no_such_option'"}


def test_a_wrong_value_is_refused():
    program = lowered()
    found = checked({"xla_cpu_enable_fast_math": "perhaps"}, lambda o: program.compile(compiler_options=o))
    assert not found.accepted
    assert "perhaps" in found.refused["xla_cpu_enable_fast_math"]


def test_another_failure_is_not_blamed_on_the_options():
    def broken(options: dict[str, object]) -> None:
        message = "RESOURCE_EXHAUSTED: out of memory"
        raise JaxRuntimeError(message)

    with pytest.raises(JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        checked({"xla_cpu_enable_fast_math": True}, broken)
