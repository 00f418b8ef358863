"""The hooks of the loom, an accelerator that nobody builds."""

from kanawa.plugins import Backend

BACKEND = Backend(
    platform="loom", devices="loom.device:DEVICES", mesh_rules="loom.device:RULES", findings="loom.device:findings"
)
