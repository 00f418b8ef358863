"""Without the CUDA wheels, a topology is an error that says which are missing."""

import re

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa_backends_gpu import topology
from kanawa_backends_gpu.plugin import BACKEND


def test_missing_wheels():
    missing = topology.missing_wheels()
    if not missing:
        pytest.skip("the GPU compiler is installed: see tests/aot")
    text = f'missing: {", ".join(missing)}; run: pip install "kanawa-backends-gpu[compile]"'
    with pytest.raises(TargetError, match=re.escape(text)):
        BACKEND.kanawa_topology(parse_target("h100-8"))


def test_other_targets_are_not_ours():
    assert BACKEND.kanawa_topology(parse_target("cpu")) is None
