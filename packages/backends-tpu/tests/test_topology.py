"""Without libtpu, a topology is an error that says what to install."""

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa_backends_tpu import topology
from kanawa_backends_tpu.plugin import BACKEND


@pytest.mark.skipif(not topology.missing_wheels(), reason="libtpu is installed: see tests/aot")
def test_missing_wheel():
    advice = r'libtpu; run: pip install "kanawa-backends-tpu\[tpu\]"'
    with pytest.raises(TargetError, match=advice):
        BACKEND.kanawa_topology(parse_target("v5p-512"))


def test_other_targets_are_not_ours():
    assert BACKEND.kanawa_topology(parse_target("cpu")) is None
