"""Programs: traced, lowered and compiled under their own plan and mesh, with the kernels they chose."""

import gc

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kanawa.contracts import Environment, Program
from kanawa.contracts.program import manifest
from kanawa.kernels import KernelChoice
from kanawa.module.context import record_kernel
from kanawa.plugins import DeviceSpec, PluginHost, hookimpl, manager

X = jax.ShapeDtypeStruct((4, 2), jnp.float32)


class Chooses(kn.Module):
    class Config(kn.Module.Config):
        """None."""

    def forward(self, x: jax.Array) -> jax.Array:
        record_kernel(KernelChoice("attention", "q", str(kn.current_plan().platform)))
        record_kernel(KernelChoice("loss", "logits", "reference"))
        record_kernel(KernelChoice("loss", "logits", "reference"))
        return x


def chooses(x):
    return kn.functional(Chooses.Config().build())({}, {}, x)


def casts(x):
    return x.astype(kn.current_plan().precision.compute)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_it_is_traced_under_its_own_plan(compute):
    environment = Environment(kn.ExecutionPlan(precision=kn.Precision(compute)))
    program = Program("cast", casts, (X,), environment=environment)
    assert program.trace().out_info.dtype == compute
    assert kn.current_plan() == kn.ExecutionPlan(), "and the plan ends with it"


def test_the_kernels_are_those_of_its_platform_once_with_the_number_of_calls():
    program = Program("step", chooses, (X,), environment=Environment(kn.ExecutionPlan(platform="tpu")))
    kernels = program.kernels()
    assert [(choice.operation, choice.kernel) for choice in kernels] == [("attention", "tpu"), ("loss", "reference")]
    assert [choice.count for choice in kernels] == [1, 2]


def test_what_is_lowered_says_what_it_chose():
    lowered = Program("step", chooses, (X,), environment=Environment()).lower()
    assert [choice.kernel for choice in lowered.kernels] == ["None", "reference"]
    assert "func.func public @main" in lowered.lowered.as_text()
    assert lowered.environment == Environment()


def test_it_lowers_for_a_platform_that_is_not_here():
    """Tracing and lowering touch no device: what a plan for a pod on a laptop rests on."""
    environment = Environment(kn.ExecutionPlan(platform="tpu"))
    text = Program("double", lambda x: x * 2.0, (X,), environment=environment).lower().lowered.as_text()
    assert "stablehlo.multiply" in text


class Loom:
    @hookimpl
    def kanawa_device_specs(self):
        sizes = dict.fromkeys(("memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth"), 1)
        return [DeviceSpec(name="loom", platform="loom", lowered_as="cuda", chips_per_host=1, source="test", **sizes)]


def test_a_platform_is_lowered_under_the_name_that_jax_has_for_it(monkeypatch):
    host = PluginHost(discover=list)
    monkeypatch.setattr(manager, "_current", host)
    host.register(Loom(), "loom")
    environment = Environment(kn.ExecutionPlan(platform="loom"))
    lowered = Program("double", lambda x: x * 2.0, (X,), environment=environment).lower()
    assert "multiply" in lowered.lowered.as_text()


def test_a_compiled_program_computes_what_the_function_does():
    compiled = Program("double", lambda x: x * 2.0, (X,), environment=Environment()).lower().compile()
    assert jnp.array_equal(compiled(jnp.ones((4, 2))), jnp.full((4, 2), 2.0))


def test_compiler_options_reach_the_compiler():
    options = {"xla_embed_ir_in_executable": True}
    lowered = Program("double", lambda x: x * 2.0, (X,), environment=Environment(compiler_options=options)).lower()
    assert lowered.compile() is not None
    bad = Environment(compiler_options={"xla_no_such_option": True})
    with pytest.raises(Exception, match="xla_no_such_option"):
        Program("double", lambda x: x * 2.0, (X,), environment=bad).lower().compile()


def test_a_described_mesh_needs_no_devices():
    mesh = AbstractMesh((256,), ("data",), axis_types=(AxisType.Auto,))
    plan = kn.ExecutionPlan(activation_rules=(("batch", ("data",)),))
    x = jax.ShapeDtypeStruct((512, 2), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    environment = Environment(plan, mesh)
    program = Program("constrain", lambda x: kn.constrain(x, ("batch", None)), (x,), environment=environment)
    assert "sharding_constraint" in str(program.trace().jaxpr)
    with environment.active():
        assert jax.sharding.get_abstract_mesh().shape == {"data": 256}
    assert jax.sharding.get_abstract_mesh().empty


def test_real_devices_run_it_split():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    environment = Environment(kn.ExecutionPlan(activation_rules=(("batch", ("data",)),)), mesh)
    x = jax.ShapeDtypeStruct((16, 2), jnp.float32)
    program = Program("constrain", lambda x: kn.constrain(x * 2.0, ("batch", None)), (x,), environment=environment)
    with environment.active():
        y = program.jitted()(jnp.ones((16, 2)))
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 2)


def test_donated_arguments_are_given_up():
    program = Program("add", lambda x, y: x + y, (X, X), donate=(0,), environment=Environment())
    x, y = jnp.ones((4, 2)), jnp.ones((4, 2))
    program.jitted()(x, y)
    assert x.is_deleted()
    assert not y.is_deleted()


def test_results_can_be_placed():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, P())
    program = Program("copy", lambda x: x * 1.0, (X,), out_shardings=whole, environment=Environment(mesh=mesh))
    assert program.jitted()(jnp.ones((4, 2))).sharding.is_equivalent_to(whole, 2)


def test_the_collector_runs_again_after_tracing_and_after_errors():
    def fails(x):
        assert not gc.isenabled()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Program("fails", fails, (X,), environment=Environment()).trace()
    assert gc.isenabled()


def test_a_manifest_joins_all_outputs_in_a_tree():
    first, second = (kn.Outputs(kernels=kernels) for kernels in ((1, 2), (2, 3)))
    assert manifest({"a": first, "b": [second, jnp.ones(1)], "c": None}) == (1, 2, 3)
    assert manifest(jnp.ones(1)) == ()
