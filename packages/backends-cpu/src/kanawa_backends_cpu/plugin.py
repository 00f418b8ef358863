"""The hooks of kanawa-backends-cpu: what it describes lies in the files beside this one, imported when asked for."""

from kanawa.plugins import Backend

BACKEND = Backend(
    platform="cpu",
    devices="kanawa_backends_cpu.device:DEVICES",
    program_traits="kanawa_backends_cpu.program_traits:program_traits",
    mesh_rules="kanawa_backends_cpu.mesh_rules:RULES",
    topology="kanawa_backends_cpu.topology:topology",
    findings="kanawa_backends_cpu.doctor:findings",
    prepare_process="kanawa_backends_cpu.process:prepare_process",
    compile_cache_key="kanawa_backends_cpu.process:compile_cache_key",
)
