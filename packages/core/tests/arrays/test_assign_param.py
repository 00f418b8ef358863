"""Where parameters live when the first choice of axis doesn't divide."""

import kanawa as kn
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from kanawa.arrays.rules import SMALL_PARAMETER, assign, assign_param
from kanawa.arrays.shardings import abstract_params
from kanawa.errors import ShardingError

RULES = (
    ("heads", ("tensor",)),
    ("embed", ("fsdp",)),
    ("mlp", ("fsdp",)),
    ("heads", ("fsdp",)),
    ("head_dim", ("fsdp",)),
)
MESH = {"fsdp": 256, "tensor": 4}


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((4096, 11008), ("embed", "mlp"), (("fsdp",), ())),
        ((1152, 6912), ("embed", "mlp"), ((), ("fsdp",))),
        ((1152, 4, 256), ("embed", "heads", "head_dim"), ((), ("tensor",), ("fsdp",))),
        ((12, 64), ("heads", "head_dim"), (("tensor",), ())),
        ((6, 64), ("heads", "head_dim"), (("tensor",), ())),
        ((192,), ("embed",), ((),)),
        ((1, 256), ("embed", "head_dim"), ((), ("fsdp",))),
        # DeepSeek-V3's queries from a latent, and keys from one: no rule's axis divides.
        ((1536, 128, 192), (None, "heads", "head_dim"), (("fsdp",), ("tensor",), ())),
        ((384, 1024, 192), (None, "heads", "head_dim"), ((), ("tensor", "fsdp"), ())),
        ((1024, 1151, 6913), ("layers", "embed", "mlp"), None),
    ],
)
def test_rules_that_do_not_divide_are_passed_over(shape, axes, expected):
    refused = assign(axes, RULES, MESH) if expected is None else None
    assert assign_param(shape, axes, RULES, MESH) == (expected or refused)


def test_a_large_parameter_that_nothing_divides_keeps_its_first_choice_and_is_refused():
    shape, axes = (1151, SMALL_PARAMETER // 1024), ("embed", "mlp")
    assert assign_param(shape, axes, RULES, MESH)[0] == ()
    shape = (1151, 6913)
    assert assign_param(shape, axes, RULES, MESH) == assign(axes, RULES, MESH)
    mesh = AbstractMesh((256, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ShardingError, match="wide: axis 'embed' has size 1151, which is not a multiple of 256"):
        abstract_params({"wide": kn.ParamSpec(shape, axes)}, RULES, mesh)


def test_what_is_not_for_storage_must_divide():
    shape, axes = (4096, 6, 1024), ("embed", "heads", "head_dim")
    assert assign_param(shape, axes, RULES, MESH) == assign(axes, RULES, MESH), "tensor isn't for storage"


def test_shardings_of_a_tree_follow():
    mesh = AbstractMesh((256, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    specs = {"up": kn.ParamSpec((1152, 6912), ("embed", "mlp")), "scale": kn.ParamSpec((1152,), ("embed",))}
    found = {name: leaf.sharding.spec for name, leaf in abstract_params(specs, RULES, mesh).items()}
    assert found == {"up": PartitionSpec(None, "fsdp"), "scale": PartitionSpec()}
