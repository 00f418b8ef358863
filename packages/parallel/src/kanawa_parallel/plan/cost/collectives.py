"""The collectives of a program: what each moves, over which mesh axes and links, and how long a ring takes."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.read.groups import mesh_axes, replica_groups
from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction
from kanawa_parallel.plan.read.shapes import arrays

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
#: The TPU compiler's reduce-scatter: an all-reduce of which each device keeps its slice, in one fusion.
_SCATTERS = re.compile(r"all-reduce-scatter")


@dataclass(frozen=True)
class Collective:
    """One collective: bytes a device sends, over which axes of the mesh and which link, and the seconds it takes."""

    name: str
    kind: str
    bytes: float
    members: int
    axes: tuple[str, ...]
    link: str
    seconds: float
    op_name: str
    starts: bool = False
    channel: str = ""


def collective(
    module: HloModule, computation: Computation, instruction: Instruction, mesh: Mapping[str, int], links: Links
) -> Collective | None:
    """Returns what an instruction communicates; None if it doesn't, or if it only waits for what was started."""
    inside = _inner(module, computation, instruction)
    if inside is None:
        return None
    kind, scope, inner, starts = inside
    groups = replica_groups(inner, math.prod(mesh.values()) or 1)
    # A permute's pairs aren't rings: every device sends to one other, whatever the length of the cycle.
    members = 2 if kind == "collective-permute" else groups.shape[-1]
    if members <= 1:
        return None
    sent = _sent(kind, _operand_bytes(scope, inner), members)
    link = links.between(groups, one_dimension='"emitter":"1D' in inner.attributes)
    seconds = sent / link.bandwidth + links.device.link_latency_seconds
    axes = mesh_axes(groups, mesh)
    name = instruction.op_name or inner.op_name
    channel = inner.attribute("channel_id") or ""
    return Collective(instruction.name, kind, sent, members, axes, link.name, seconds, name, starts, channel)


def ends(instruction: Instruction) -> bool:
    """Returns whether an instruction waits for what another started."""
    return instruction.opcode.endswith("-done") or instruction.name.startswith("async-collective-done")


def _inner(
    module: HloModule, computation: Computation, instruction: Instruction
) -> tuple[str, Computation, Instruction, bool] | None:
    """Returns (kind, where it stands, the collective itself, whether something else waits for it)."""
    base, starts = instruction.opcode.removesuffix("-start"), instruction.opcode.endswith("-start")
    if base in KINDS:
        return base, computation, instruction, starts
    if instruction.opcode not in ("fusion", "async-start", "call"):
        return None
    for called in instruction.called:
        body = module.computations.get(called)
        for inner in body.instructions if body else ():
            if inner.opcode.removesuffix("-start") in KINDS:
                kind = inner.opcode.removesuffix("-start")
                kind = "reduce-scatter" if kind == "all-reduce" and _SCATTERS.search(called) else kind
                awaited = instruction.opcode == "async-start" or instruction.name.startswith("async-collective-start")
                return kind, body, inner, awaited
    return None


def _operand_bytes(computation: Computation, instruction: Instruction) -> int:
    total = 0
    for operand in instruction.operands:
        made = computation.by_name.get(operand)
        total += sum(a.bytes for a in made.arrays) if made else 0
    # An operand that this computation doesn't hold has its shape written beside it, in dumps that write shapes.
    return total or sum(a.bytes for a in arrays(instruction.operand_text))


def _sent(kind: str, operand_bytes: int, members: int) -> float:
    """Returns the bytes each device sends around a ring of `members`."""
    # Each of the ring's hops passes on a part; the last hop would bring a device its own.
    others = members - 1
    if kind == "all-gather":
        return float(operand_bytes * others)
    if kind == "all-reduce":
        return 2.0 * operand_bytes * others / members
    if kind == "collective-permute":
        return float(operand_bytes)
    return operand_bytes * others / members
