"""The picture is well-formed, names every array, and says how many copies there are."""

from xml.etree import ElementTree

import pytest
from jax.sharding import AbstractMesh, AxisType
from kanawa.arrays.rules import partition
from kanawa.arrays.shardings import abstract_params
from kanawa.arrays.tree import flatten_paths
from kanawa.module import param_specs
from kanawa_parallel.plan.show.picture import draw, parameter_rows
from kanawa_parallel.strategies.fsdp import FSDP

MESH = {"data": 2, "fsdp": 4}
KERNEL = ("stack.layer.up.kernel", ("layers", "embed", "mlp"), ((), ("fsdp",), ()))
SCALE = ("norm.scale", ("norm",), ((),))
TOKENS = ("token ids", ("batch", "length"), (("data", "fsdp"), ()))


@pytest.mark.parametrize("mesh", [MESH, {}])
def test_every_array_has_its_row(mesh):
    split = (KERNEL, SCALE) if mesh else ((*KERNEL[:2], ((), (), ())), SCALE)
    tokens = TOKENS if mesh else (*TOKENS[:2], ((), ()))
    root = ElementTree.fromstring(draw("a < b", mesh, list(split), [tokens]))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a < b", "stack.layer.up.kernel", "norm.scale", "token ids"} <= set(texts)
    if mesh:
        assert texts[texts.index("mlp") + 1] == "2 copies"
        assert texts[texts.index("norm") + 1] == "8 copies"
        assert texts[texts.index("length") + 1] == "one copy"


def test_colours_are_the_mesh_axes():
    text = draw("t", MESH, [KERNEL], [TOKENS])
    assert text.count('opacity="0.55"') == 3


@pytest.mark.parametrize("shards", [3, 4, 8])
def test_rows_show_where_parameters_really_lie(job, shards):
    """Also where the first choice of an axis doesn't divide, and storage takes another one or none."""
    model = job.Job.Config().build().model
    rules = FSDP.Config().build().param_rules()
    mesh = AbstractMesh((shards,), ("fsdp",), axis_types=(AxisType.Auto,))
    placed = flatten_paths(abstract_params(param_specs(model), rules, mesh))
    rows = {path: partition(split) for path, _, split in parameter_rows(model, rules, {"fsdp": shards})}
    assert rows == {path: leaf.sharding.spec for path, leaf in placed.items()}
