"""Trainium can't be compiled for here, and says so."""

from sashimono.compose.target import parse_target
from sashimono_backends_neuron import plugin
from sashimono_backends_neuron.topology import NOT_COMPILED


def test_no_topology_with_a_reason():
    assert plugin.sashimono_topology(parse_target("trn2-64")) is None
    assert NOT_COMPILED.startswith("not compiled")


def test_no_compiler_options():
    device = parse_target("trn2").device
    assert plugin.sashimono_compiler_options(device, "train") == {}
