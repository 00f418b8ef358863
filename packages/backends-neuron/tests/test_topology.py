"""Trainium can't be compiled for here, and says so."""

from kanawa.composition.target import parse_target
from kanawa_backends_neuron import plugin
from kanawa_backends_neuron.topology import NOT_COMPILED


def test_no_topology_with_a_reason():
    assert plugin.kanawa_topology(parse_target("trn2-64")) is None
    assert NOT_COMPILED.startswith("not compiled")


def test_no_compiler_options():
    device = parse_target("trn2").device
    assert plugin.kanawa_compiler_options(device, "train") == {}
