"""The hooks of kanawa-backends-tpu: what it describes lies in the files beside this one, imported when asked for."""

from kanawa.plugins import Backend

BACKEND = Backend(
    platform="tpu",
    devices="kanawa_backends_tpu.device:DEVICES",
    mesh_rules="kanawa_backends_tpu.mesh_rules:RULES",
    compiler_options="kanawa_backends_tpu.compiler:compiler_options",
    program_traits="kanawa_backends_tpu.compiler:program_traits",
    topology="kanawa_backends_tpu.topology:topology",
    missing_compiler="kanawa_backends_tpu.topology:missing_wheels",
    calibrations="kanawa_backends_tpu.calibration:CALIBRATIONS",
    kernel_schedules="kanawa_backends_tpu.schedule.compiled:kernel_schedules",
    recorded_cycles="kanawa_backends_tpu.schedule.compiled:recorded_cycles",
    install="kanawa-backends-tpu[tpu]",
    findings="kanawa_backends_tpu.doctor:findings",
    signs=("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
)
