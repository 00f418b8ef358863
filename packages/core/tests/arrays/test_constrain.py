"""Constraints by logical axes: where arrays land under a mesh, and what is refused."""

import jax
import jax.numpy as jnp
import kanawa as kn
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from kanawa.arrays.constrain import auto_mesh_shape, constrain_param
from kanawa.errors import ShardingError

PLAN = kn.ExecutionPlan(
    param_rules=(("embed", ("data",)), ("mlp", ("tensor",))),
    activation_rules=(("batch", ("data",)), ("mlp", ("tensor",))),
)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)


def placed(function, x, mesh, plan=PLAN):
    with kn.use_plan(plan), jax.set_mesh(mesh):
        return jax.jit(function)(x)


def test_an_activation_lies_where_the_plan_says(mesh):
    y = placed(lambda x: kn.constrain(x, ("batch", "length", "mlp")), jnp.ones((8, 3, 6)), mesh)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("data", None, "tensor")), 3)
    assert {shard.data.shape for shard in y.addressable_shards} == {(2, 3, 3)}


def test_a_parameter_has_rules_of_its_own(mesh):
    y = placed(lambda x: constrain_param(x, ("embed", "mlp"), "up"), jnp.ones((8, 6)), mesh)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "tensor")), 2)


@pytest.mark.parametrize("axes", [("batch", "mlp"), ("mlp",)])
def test_without_a_mesh_or_rules_it_is_the_array_itself(axes):
    x = jnp.ones((3, 5))
    with kn.use_plan(PLAN):
        assert kn.constrain(x, axes) is x, "there is no mesh: not even the axes are looked at"
    assert kn.constrain(x, axes) is x


def test_no_rules_under_a_mesh_leave_it_alone(mesh):
    x = jnp.ones((3, 5))
    with jax.set_mesh(mesh):
        assert kn.constrain(x, ("batch", "mlp")) is x
        assert constrain_param(x, ("embed", "mlp"), "up") is x


def test_a_dimension_of_one_is_never_split(mesh):
    y = placed(lambda x: kn.constrain(x, ("batch", "mlp")), jnp.ones((1, 4)), mesh)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "tensor")), 2)


def test_what_does_not_divide_is_refused_with_sizes(mesh):
    with pytest.raises(ShardingError, match=r"activation: axis 'batch' has size 6, .* of 4 \(mesh axes data=4"):
        placed(lambda x: kn.constrain(x, ("batch", None)), jnp.ones((6, 4)), mesh)


@pytest.mark.parametrize("axes", [("batch",), ("batch", "length", "mlp")])
def test_axes_must_name_every_dimension(mesh, axes):
    with pytest.raises(ShardingError, match=r"activation: array of shape \(4, 2\) has 2 dimensions but axes"):
        placed(lambda x: kn.constrain(x, axes), jnp.ones((4, 2)), mesh)
    with pytest.raises(ShardingError, match=r"up.weight: array of shape \(4, 2\)"):
        placed(lambda x: constrain_param(x, axes, "up.weight"), jnp.ones((4, 2)), mesh)


def test_axes_that_a_shard_map_made_manual_are_left_out(mesh):
    seen = []

    def shard(x):
        seen.append(auto_mesh_shape())
        return kn.constrain(x, ("batch", "mlp"))

    def whole(x):
        return jax.shard_map(shard, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}, check_vma=False)(x)

    y = placed(whole, jnp.ones((6 * 4, 2)), mesh)
    assert seen[0] == {"tensor": 2}, "inside, only the tensor axis is the compiler's to place"
    assert y.shape == (24, 2)


def test_a_cast_parameter_is_gathered_after_the_cast(mesh):
    """In bf16 half the bytes travel: the constraint holds the narrow array where the wide one is stored."""

    class Scale(kn.Module):
        class Config(kn.Module.Config):
            """None."""

        def setup(self) -> None:
            self.add_param("scale", (8,), axes=("embed",), init=kn.ones)

        def forward(self, x: jax.Array) -> jax.Array:
            return x * self.param("scale")[None]

    module = Scale.Config().build()
    plan = kn.ExecutionPlan(param_rules=PLAN.param_rules, precision=kn.Precision("bfloat16"))
    with kn.use_plan(plan), jax.set_mesh(mesh):
        params = kn.initialize(module, jax.random.key(0))
        text = str(jax.make_jaxpr(lambda p: kn.functional(module)(p, {}, jnp.ones((2, 8), jnp.bfloat16))[0])(params))
    cast, constraint, product = (text.index(word) for word in ("convert_element_type", "sharding_constraint", " mul "))
    assert cast < constraint < product
