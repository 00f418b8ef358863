"""Which mesh suits several devices of one processor: parameters are sharded over all of them."""

from kanawa.plugins import MeshRule

RULES = (MeshRule(name="cpu", platform="cpu", mesh={"fsdp": -1}),)
