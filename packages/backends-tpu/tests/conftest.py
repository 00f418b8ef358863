"""What the mesh tests need: the row that composition gets for a selector and a model size."""

import math
from collections.abc import Callable

import pytest
from sashimono.compose.mesh_rules import dcn_axes, find_rule
from sashimono.compose.target import parse_target

Row = tuple[dict[str, int], dict[str, int], str]


@pytest.fixture
def mesh_row() -> Callable[[str, float], Row]:
    """Gives (axes in a slice, axes between slices, remat policy), checked to fit the devices."""

    def row(selector: str, num_parameters: float) -> Row:
        target = parse_target(selector)
        rule = find_rule(target, int(num_parameters))
        assert rule is not None
        mesh, between = dict(rule.mesh), dcn_axes(rule, target)
        fixed = math.prod(size for size in mesh.values() if size != -1)
        in_slice = target.jax_devices // target.slices
        assert in_slice % fixed == 0
        assert -1 in mesh.values() or fixed == in_slice
        assert math.prod(between.values()) == target.slices
        policies = [values["policy"] for name, values in rule.modifiers if name == "remat"]
        return mesh, between, "".join(policies)

    return row
