"""The hooks of kanawa-backends-neuron: what it describes lies in the files beside this one, imported when asked for.

There is neither a topology nor a compiler option: AWS publishes no compiler wheel for machines without Trainium, so
that targets are planned from the HLO and the figures; and neuronx-cc reads NEURON_CC_FLAGS (`environment.py`).
"""

from kanawa.plugins import Backend

BACKEND = Backend(
    platform="neuron",
    devices="kanawa_backends_neuron.device:DEVICES",
    mesh_rules="kanawa_backends_neuron.mesh_rules:RULES",
    findings="kanawa_backends_neuron.doctor:findings",
    signs=("/dev/neuron[0-9]*",),
    process_environment="kanawa_backends_neuron.environment:process_environment",
    calibrations="kanawa_backends_neuron.calibration:CALIBRATIONS",
)
