"""The hooks of kanawa-backends-gpu: what it describes lies in the files beside this one, imported when asked for."""

from kanawa.plugins import Backend

BACKEND = Backend(
    platform="gpu",
    devices="kanawa_backends_gpu.device:DEVICES",
    mesh_rules="kanawa_backends_gpu.mesh_rules:RULES",
    compiler_options="kanawa_backends_gpu.compiler:compiler_options",
    topology="kanawa_backends_gpu.topology:topology",
    missing_compiler="kanawa_backends_gpu.topology:missing_wheels",
    kernel_schedules="kanawa_backends_gpu.schedule:kernel_schedules",
    calibrations="kanawa_backends_gpu.calibration:CALIBRATIONS",
    without_compiler=("mi300x", "mi325x", "mi355x"),
    install="kanawa-backends-gpu[compile]",
    findings="kanawa_backends_gpu.doctor:findings",
    signs=("/dev/nvidia[0-9]*",),
)
