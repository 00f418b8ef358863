"""The picture is well-formed, names every array, and says how many copies there are."""

from xml.etree import ElementTree

import pytest
from kanawa_parallel.plan.show.picture import draw

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
