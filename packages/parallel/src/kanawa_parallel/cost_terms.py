"""What programs and their plans agree on: the bytes that collectives send, and branches that are seldom taken."""

#: The name scope of a branch that is seldom taken: what it costs is no part of a step's time.
UNLIKELY = "unlikely"


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
