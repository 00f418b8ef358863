"""The programs that a trace holds: XLA's own record of each, as the instructions the planner reads.

A trace is an XSpace whose plane "/host:metadata" has one HloProto a program. Source of the field numbers:
`tsl/profiler/protobuf/xplane.proto` and `xla/service/hlo.proto` of https://github.com/openxla/xla.
"""

import json
from collections.abc import Iterator

from kanawa_parallel.plan.read.hlo import Computation, HloModule, Instruction
from kanawa_parallel.profile.wire import fields, integers, text

_METADATA = "/host:metadata"


def programs_of(trace: bytes) -> list[tuple[str, HloModule]]:
    """Returns the programs of a serialized trace by name; instructions have no shapes.

    Raises ValueError for what is no trace.
    """
    found: list[tuple[str, HloModule]] = []
    for plane in map(fields, fields(trace)[1]):
        if text(plane[2]) != _METADATA:
            continue
        for entry in map(fields, plane[4]):
            for event in map(fields, entry[2]):
                found += _modules(event[5])
    return found


def _modules(stats: list[bytes]) -> Iterator[tuple[str, HloModule]]:
    """Yields the modules among the statistics of a program, with their names."""
    for stat in map(fields, stats):
        for proto in stat[6]:
            for held in map(fields, fields(proto)[1]):
                made = [fields(each) for each in held[3]]
                names = {integers(each[5])[0]: text(each[1]) for each in made if each[5]}
                computations = [_computation(each, names) for each in made]
                yield text(held[1]), HloModule({each.name: each for each in computations}, text(held[2]))


def _computation(proto: dict[int, list[bytes]], names: dict[int, str]) -> Computation:
    instructions = [fields(each) for each in proto[2]]
    by_id = {integers(each[35])[0]: text(each[1]) for each in instructions if each[35]}
    root = integers(proto[6])[-1] if proto[6] else None
    made = Computation(text(proto[1]))
    for each in instructions:
        metadata = fields(each[7][0]) if each[7] else {}
        called = ", ".join(names[id_] for id_ in integers(each[38]) if id_ in names)
        attributes = f"called_computations={{{called}}}" if called else ""
        attributes += f", custom_call_target={json.dumps(text(each[28]))}" if each[28] else ""
        attributes += f", metadata={{op_name={json.dumps(text(metadata[2]))}}}" if metadata.get(2) else ""
        operands = tuple(by_id[id_] for id_ in integers(each[36]) if id_ in by_id)
        is_root = bool(each[35]) and integers(each[35])[0] == root
        made.add(Instruction(text(each[1]), "", text(each[2]), operands, "", attributes, is_root))
    return made
