"""What the preflight says of a machine with Trainium chips, by what is installed there."""

import pytest
from kanawa_backends_neuron import doctor


@pytest.mark.parametrize(
    "chips, installed, level, said",
    [
        ([], (), "ok", "no Trainium chip"),
        (["/dev/neuron0"], (), "error", "no Neuron plugin for JAX: JAX uses the CPU"),
        # PyPI's placeholder: a package without the modules.
        (["/dev/neuron0"], ("libneuronxla", "nki"), "warning", "NKI is not"),
        (["/dev/neuron0"], ("libneuronxla", "nki", "nki.isa"), "ok", "installed, and NKI"),
    ],
)
def test_findings(chips, installed, level, said, monkeypatch):
    monkeypatch.setattr(doctor, "glob", lambda pattern: chips)
    monkeypatch.setattr(doctor, "find_spec", lambda name: name if name in installed else None)
    (finding,) = doctor.findings()
    assert finding.level == level
    assert said in finding.message
    assert finding.fix or level == "ok"
