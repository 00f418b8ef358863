"""Without libtpu, a topology is an error that says what to install."""

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa_backends_tpu import plugin, topology


@pytest.mark.skipif(topology.has_compiler(), reason="libtpu is installed: see tests/aot")
def test_missing_wheel():
    advice = r'libtpu; run: pip install "kanawa-backends-tpu\[tpu\]"'
    with pytest.raises(TargetError, match=advice):
        plugin.kanawa_topology(parse_target("v5p-512"))


def test_other_targets_are_not_ours():
    assert plugin.kanawa_topology(parse_target("cpu")) is None
