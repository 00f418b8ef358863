"""Bytes that one run of an instruction moves between memory and the cores.

Operands and results, but of an array that is only sliced, the slices; of one updated in place, the update. What a
fusion computes inside stays on the chip.
"""

from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction

#: Instructions that move nothing: names for what is there already, and loops, whose bodies are counted themselves.
FREE = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call"),
        *("after-all", "partition-id", "replica-id", "domain", "opt-barrier", "add-dependency"),
        *("copy-start", "copy-done", "async-start", "async-update", "async-done", "send", "recv"),
    )
)
_SLICES = ("dynamic-slice", "slice", "gather")


def bytes_moved(module: HloModule, computation: Computation, instruction: Instruction) -> float:
    """Returns bytes read and written by one run."""
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith(("-start", "-done")):
        return 0.0
    if opcode in _SLICES:
        return 2.0 * _bytes(instruction)
    if opcode == "dynamic-update-slice":
        # The array itself stays where it is: compilers update in place, or copy in an instruction of its own.
        return 2.0 * _operand_bytes(computation, instruction, 1)
    if opcode in ("broadcast", "iota"):
        return float(_bytes(instruction))
    if opcode == "fusion" and instruction.called and instruction.called[0] in module.computations:
        return _fusion(module, computation, instruction)
    reads = sum(_operand_bytes(computation, instruction, i) for i in range(len(instruction.operands)))
    return float(reads + _bytes(instruction))


def _fusion(module: HloModule, computation: Computation, fusion: Instruction) -> float:
    body = module.computations[fusion.called[0]]
    total = 0.0
    for inner in body.instructions:
        if inner.opcode == "parameter" and inner.operand_text.strip().isdigit():
            total += _read(module, body, inner.name, _operand_bytes(computation, fusion, int(inner.operand_text)))
    root = body.root()
    return total + (_written(module, body, root) if root is not None else 0.0)


def _read(module: HloModule, body: Computation, name: str, whole: int) -> float:
    """Returns the bytes read of a value in a fused computation: its slices, if only slices are taken."""
    parts = 0.0
    for user in body.instructions:
        for position, operand in enumerate(user.operands):
            if operand != name:
                continue
            if user.opcode == "bitcast":
                parts += _read(module, body, user.name, whole)
            elif user.opcode == "fusion" and user.called and user.called[0] in module.computations:
                parts += _read_inside(module, user, position, whole)
            elif user.opcode in _SLICES and position == 0:
                parts += _bytes(user)
            # Operand 0 of an update is overwritten in place, not read; any other use reads everything.
            elif not (user.opcode == "dynamic-update-slice" and position == 0):
                return float(whole)
    return min(parts, float(whole))


def _read_inside(module: HloModule, nested: Instruction, position: int, whole: int) -> float:
    body = module.computations[nested.called[0]]
    for inner in body.instructions:
        if inner.opcode == "parameter" and inner.operand_text.strip() == str(position):
            return _read(module, body, inner.name, whole)
    return float(whole)


def _written(module: HloModule, body: Computation, root: Instruction) -> float:
    """Returns the bytes a fused computation writes: of arrays updated in place, the updates."""
    if root.opcode == "tuple":
        parts = [body.by_name[name] for name in root.operands if name in body.by_name]
        return sum(_written(module, body, part) for part in parts)
    seen = root
    # What an update is wrapped in doesn't make it a copy: the array below is still updated in place.
    while seen.opcode in ("bitcast", "convert", "copy") and seen.operands and seen.operands[0] in body.by_name:
        seen = body.by_name[seen.operands[0]]
    if seen.opcode == "dynamic-update-slice":
        return float(_operand_bytes(body, seen, 1))
    if seen.opcode == "fusion" and seen.called and seen.called[0] in module.computations:
        inner = module.computations[seen.called[0]]
        inside = inner.root()
        return float(_bytes(root)) if inside is None else _written(module, inner, inside)
    return float(_bytes(root))


def _operand_bytes(computation: Computation, instruction: Instruction, index: int) -> int:
    if index >= len(instruction.operands):
        return 0
    made = computation.by_name.get(instruction.operands[index])
    return 0 if made is None else _bytes(made)


def _bytes(instruction: Instruction) -> int:
    return sum(array.bytes for array in instruction.arrays)
