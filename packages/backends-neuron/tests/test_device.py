"""What a Trainium selector means, and that the figures hang together."""

import pytest
from kanawa.composition.target import parse_target
from kanawa.errors import TargetError
from kanawa.plugins.devices import device_spec_of_kind

# selector: chips, JAX devices, hosts
TABLE = {
    "trn1": (1, 2, 1),
    "trn1-32": (32, 64, 2),
    "trn2": (1, 4, 1),
    "trn2-16": (16, 64, 1),
    "trn2-64": (64, 256, 4),
    "trn2-1024": (1024, 4096, 64),
    "trn3-144": (144, 576, 36),
}


@pytest.mark.parametrize("selector", TABLE)
def test_selector(selector):
    target = parse_target(selector)
    assert (target.chips, target.jax_devices, target.hosts) == TABLE[selector]


def test_instances_must_be_full():
    with pytest.raises(TargetError, match="trn2-16 or trn2-32"):
        parse_target("trn2-20")


def test_a_logical_core_of_two_is_known():
    assert device_spec_of_kind("NC_v3d").name == "trn2"
    assert device_spec_of_kind("NC_v2").name == "trn1"
