"""From the name stacks that JAX writes into a program to the modules of the model, which are its config paths."""

import re
from collections.abc import Iterable
from typing import Any

from kanawa_parallel.plan.read.hlo import HloModule

_WRAPPED = re.compile(r"^\w+\((.*)\)$")
#: Work of no module of the model: optimizer, clipping, loss scaling.
OUTSIDE = "(step)"
#: What the compiler added without a name stack.
UNNAMED = "(compiler)"


def module_paths(model: Any) -> frozenset[str]:
    """Returns the dotted paths of all modules under the root, such as "stack.layer.attention"."""
    paths: set[str] = set()

    def walk(module: Any, above: str) -> None:
        for name, child in module.children.items():
            path = f"{above}.{name}" if above else name
            paths.add(path)
            walk(child, path)

    walk(model, "")
    return frozenset(paths)


def module_of(op_name: str, paths: Iterable[str]) -> str:
    """Returns the innermost module a name stack passes through, prefixed "model." as its config path is.

    Transform wrappers, such as `transpose(jvp(stack))`, and loop bodies between modules are skipped.
    """
    if not op_name:
        return UNNAMED
    known = paths if isinstance(paths, frozenset) else frozenset(paths)
    # Module paths are a subsequence of the name stack: transforms and loop bodies stand between their parts.
    at = ""
    for token in op_name.split("/"):
        name = _unwrapped(token)
        path = f"{at}.{name}" if at else name
        if path in known:
            at = path
    return f"model.{at}" if at else OUTSIDE


def known_names(module: HloModule) -> dict[str, str]:
    """Returns each instruction's name stack; one that the compiler made up has that of what it holds, reads or serves.

    A copy belongs to what it copies, and what comes of nothing, such as a broadcast zero, to its reader.
    """
    names: dict[str, str] = {}
    for computation in module.computations.values():
        users: dict[str, str] = {}
        for each in computation.instructions:
            for operand in each.operands:
                users.setdefault(operand, each.name)
            held = (i.op_name for called in each.called if called in module.computations
                    for i in reversed(module.computations[called].instructions))  # fmt: skip
            read = (names.get(operand, "") for operand in each.operands)
            fused = each.opcode == "fusion"
            names[each.name] = each.op_name or next(filter(None, held), "") if fused else each.op_name
            names[each.name] = names[each.name] or next(filter(None, read), "")
        for each in reversed(computation.instructions):
            names[each.name] = names[each.name] or names.get(users.get(each.name, ""), "")
    return names


def _unwrapped(token: str) -> str:
    match = _WRAPPED.match(token)
    while match:
        token = match[1]
        match = _WRAPPED.match(token)
    return token
