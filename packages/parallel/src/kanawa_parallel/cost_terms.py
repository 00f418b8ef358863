"""What programs and their plans agree on: bytes that collectives send, branches seldom taken, room partly filled."""

import re

#: The name scope of a branch that is seldom taken: what it costs is no part of a step's time.
UNLIKELY = "unlikely"
_FILLED = re.compile(r"\bfilled~(\d+)")


def filled(rows: int, room: int) -> str:
    """Returns the name scope of kernels that skip empty rows, where `rows` are expected in an array of `room`."""
    return f"filled~{round(1000 * min(1.0, rows / max(1, room)))}"


def filled_share(name_stack: str) -> float:
    """Returns the share of its rows that a kernel of this name stack computes; 1 where no scope states it."""
    match = _FILLED.search(name_stack)
    return int(match[1]) / 1000 if match else 1.0


def sent_bytes(kind: str, operand_bytes: float, members: int) -> float:
    """Returns the bytes each device sends around a ring of `members`."""
    # Each of the ring's hops passes on a part; the last hop would bring a device its own.
    others = members - 1
    if kind == "all-gather":
        return float(operand_bytes * others)
    if kind == "all-reduce":
        return 2.0 * operand_bytes * others / members
    if kind in ("collective-permute", "send"):
        return float(operand_bytes)
    return operand_bytes * others / members
