"""Bytes that one run of an instruction moves between memory and the cores.

Operands and results, but of an array that is only sliced, the slices; of one updated in place, the update. What a
fusion computes inside stays on the chip.
"""

from kanawa_parallel.plan.read.hlo import HOST, Computation, HloModule, Instruction

#: Instructions that move nothing: names for what is there already, and loops, whose bodies are counted themselves.
FREE = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call"),
        *("after-all", "partition-id", "replica-id", "domain", "opt-barrier", "add-dependency"),
        *("copy-start", "copy-done", "async-start", "async-update", "async-done", "send", "recv"),
    )
)
_SLICES = ("dynamic-slice", "slice", "gather")
#: Custom calls that compute nothing.
_CLAIMS = frozenset(
    f'"{name}"' for name in ("AllocateBuffer", "Sharding", "SPMDFullToShardShape", "annotate_device_placement")
)
#: What a fusion computes element by element, so that of what is sliced afterwards only the slices are read.
_ELEMENTWISE = frozenset(("bitcast", "convert", "copy", "negate", "reshape", "transpose", "reduce-precision"))


def bytes_moved(module: HloModule, computation: Computation, instruction: Instruction) -> float:
    """Returns bytes read and written by one run; what lies in the host's memory isn't among them."""
    opcode = instruction.opcode
    if (
        opcode.removesuffix("-start") == "fusion"
        and instruction.called
        and instruction.called[0] in module.computations
    ):
        return _fusion(module, computation, instruction)
    if opcode in FREE or opcode.endswith(("-start", "-done", "-update")) or _claims(instruction):
        return 0.0
    if opcode in _SLICES:
        return 2.0 * _bytes(instruction)
    if opcode == "dynamic-update-slice":
        # The array itself stays where it is: compilers update in place, or copy in an instruction of its own.
        return 2.0 * _operand_bytes(computation, instruction, 1)
    if opcode == "scatter":
        # Written in place too: indices and updates are read, and as much is read and written where they go.
        arrays = max(1, (len(instruction.operands) - 1) // 2)
        updates = sum(_operand_bytes(computation, instruction, i) for i in range(arrays + 1, 2 * arrays + 1))
        return 3.0 * updates + _operand_bytes(computation, instruction, arrays)
    if opcode in ("broadcast", "iota"):
        return float(_bytes(instruction))
    reads = sum(_operand_bytes(computation, instruction, i) for i in range(len(instruction.operands)))
    return float(reads + _bytes(instruction))


def _claims(instruction: Instruction) -> bool:
    """Returns whether a custom call only claims memory, or marks something for the compiler."""
    return instruction.opcode == "custom-call" and (instruction.attribute("custom_call_target") or "") in _CLAIMS


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
    value = body.by_name[name]
    size = sum(array.size for array in value.arrays)
    return whole * min(1.0, _elements_read(module, body, name) / size) if size else 0.0


def _elements_read(module: HloModule, body: Computation, name: str) -> float:
    size = sum(array.size for array in body.by_name[name].arrays)
    parts = 0.0
    for user in body.instructions:
        for position, operand in enumerate(user.operands):
            if operand != name:
                continue
            if user.opcode in _ELEMENTWISE and not user.root:
                parts += _elements_read(module, body, user.name)
            elif user.opcode == "fusion" and user.called and user.called[0] in module.computations:
                parts += _read_inside(module, user, position, size)
            elif user.opcode in _SLICES and position == 0:
                parts += sum(array.size for array in user.arrays)
            # Operand 0 of an update is overwritten in place, not read; any other use reads everything.
            elif not (user.opcode == "dynamic-update-slice" and position == 0):
                return float(size)
    return min(parts, float(size))


def _read_inside(module: HloModule, nested: Instruction, position: int, size: int) -> float:
    body = module.computations[nested.called[0]]
    for inner in body.instructions:
        if inner.opcode == "parameter" and inner.operand_text.strip() == str(position):
            return _elements_read(module, body, inner.name)
    return float(size)


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
        update = body.by_name.get(seen.operands[1])
        # As wide as what is written, whatever the update was computed in.
        width = _bytes(root) / max(1, sum(array.size for array in root.arrays))
        return width * sum(array.size for array in update.arrays) if update is not None else 0.0
    if seen.opcode == "fusion" and seen.called and seen.called[0] in module.computations:
        inner = module.computations[seen.called[0]]
        inside = inner.root()
        return float(_bytes(root)) if inside is None else _written(module, inner, inside)
    return float(_bytes(root))


def _operand_bytes(computation: Computation, instruction: Instruction, index: int) -> int:
    made = computation.by_name.get(instruction.operands[index]) if index < len(instruction.operands) else None
    return 0 if made is None else _bytes(made)


def _bytes(instruction: Instruction) -> int:
    return sum(array.bytes for array in instruction.arrays if array.space != HOST)
