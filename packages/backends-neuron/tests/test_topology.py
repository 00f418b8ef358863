"""Trainium can't be compiled for here."""

from kanawa.composition.target import parse_target
from kanawa_backends_neuron.plugin import BACKEND


def test_no_topology():
    assert BACKEND.kanawa_topology(parse_target("trn2-64")) is None


def test_no_compiler_options():
    device = parse_target("trn2").device
    assert BACKEND.kanawa_compiler_options(device, "train") == {}
