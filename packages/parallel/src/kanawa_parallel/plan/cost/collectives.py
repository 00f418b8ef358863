"""The collectives of a program: what each moves, over which mesh axes and links, and how long a ring takes."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kanawa_parallel.cost_terms import sent_bytes
from kanawa_parallel.plan.cost.links import Links
from kanawa_parallel.plan.read.groups import mesh_axes, replica_groups
from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction, arrays

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
#: A reduce-scatter in one fusion: an all-reduce of which each device keeps its slice.
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
    pieces = [_piece(*inside, instruction, mesh, links) for inside in _inner(module, computation, instruction)]
    parts = [piece for piece in pieces if piece is not None]
    if not parts:
        return None
    first = parts[0]
    if len(parts) == 1:
        return first
    # Several in one call go out together, one after the other on the first one's link.
    axes = tuple(dict.fromkeys(axis for part in parts for axis in part.axes))
    sent, seconds = sum(part.bytes for part in parts), sum(part.seconds for part in parts)
    return dataclasses.replace(first, bytes=sent, seconds=seconds, axes=axes)


def _piece(
    kind: str,
    scope: Computation,
    inner: Instruction,
    starts: bool,
    instruction: Instruction,
    mesh: Mapping[str, int],
    links: Links,
) -> Collective | None:
    """Returns what one collective sends under the name of the instruction that runs it."""
    groups = replica_groups(inner, math.prod(mesh.values()) or 1)
    # A permute's pairs aren't rings: every device sends to one other, whatever the length of the cycle.
    members = min(groups.size, 2) if kind in ("collective-permute", "send") else groups.shape[-1]
    if members <= 1:
        return None
    # What a ragged exchange writes into is an operand too, and a send's second is a token.
    only = 1 if kind in ("ragged-all-to-all", "send") else None
    held = _operand_bytes(scope, inner, only)
    if kind == "ragged-all-to-all":
        # Of room for more rows than an even load only that many are sent, there or back.
        held = min(held, sum(array.bytes for array in inner.arrays) or held)
    sent = sent_bytes(kind, held, members)
    link = links.between(groups, one_dimension='"emitter":"1D' in inner.attributes)
    seconds = links.seconds(sent, link)
    axes = mesh_axes(groups, mesh)
    name = instruction.op_name or inner.op_name
    channel = inner.attribute("channel_id") or ""
    return Collective(instruction.name, kind, sent, members, axes, link.name, seconds, name, starts, channel)


def communicates(module: HloModule, instruction: Instruction) -> bool:
    """Returns whether an instruction holds a collective, whatever it sends."""
    bodies = (module.computations[name] for name in instruction.called if name in module.computations)
    return instruction.opcode.removesuffix("-start") in KINDS or any(True for b in bodies for _ in _held(module, b))


def ends(instruction: Instruction) -> bool:
    """Returns whether an instruction waits for what another started."""
    return instruction.opcode.endswith("-done") or instruction.name.startswith("async-collective-done")


def _inner(
    module: HloModule, computation: Computation, instruction: Instruction
) -> list[tuple[str, Computation, Instruction, bool]]:
    """Returns (kind, where it stands, the collective itself, whether something else waits for it) of all it runs."""
    base, starts = instruction.opcode.removesuffix("-start"), instruction.opcode.endswith("-start")
    if base in KINDS:
        return [(base, computation, instruction, starts)]
    # Only a transfer between devices has pairs: one to the host goes over no link of theirs.
    if base == "send" and "source_target_pairs" in instruction.attributes:
        return [("send", computation, instruction, True)]
    if instruction.opcode not in ("fusion", "async-start", "fusion-start", "call-start"):
        return []
    awaited = starts or instruction.name.startswith("async-collective-start")
    bodies = [module.computations[name] for name in instruction.called if name in module.computations]
    return [(kind, scope, inner, awaited) for body in bodies for kind, scope, inner in _held(module, body)]


def _held(module: HloModule, body: Computation) -> Iterator[tuple[str, Computation, Instruction]]:
    """Yields the collectives of a computation and of those that it calls."""
    for inner in body.instructions:
        kind = inner.opcode.removesuffix("-start")
        if kind in KINDS:
            yield "reduce-scatter" if kind == "all-reduce" and _SCATTERS.search(body.name) else kind, body, inner
        for called in inner.called if kind not in KINDS else ():
            if called in module.computations:
                yield from _held(module, module.computations[called])


def _operand_bytes(computation: Computation, instruction: Instruction, only: int | None = None) -> int:
    """Returns the bytes of the operands, or of the first `only`."""
    total = 0
    for operand in instruction.operands[:only]:
        made = computation.by_name.get(operand)
        total += sum(a.bytes for a in made.arrays) if made else 0
    # An operand that this computation doesn't hold has its shape written beside it, in dumps that write shapes.
    return total or sum(a.bytes for a in arrays(instruction.operand_text)[:only])
