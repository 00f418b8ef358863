"""What a step takes at least on a mesh that wasn't traced, from the trace of one that splits rows and parameters alone.

On every mesh a device does as much of the step's work. What differs is what it waits for, and how many bytes its share
of the state leaves for activations, of which fewer are recomputed then.
"""

import dataclasses
from collections.abc import Sequence

from kanawa.arrays.axes import MESH_AXES

from kanawa_parallel.cost_terms import sent_bytes
from kanawa_parallel.plan.placement.choices import PLAIN, Spread
from kanawa_parallel.plan.placement.sketch import Kept, Sketch

#: Bytes a parameter of a state in float32 with two moments, and of its gradient.
STATE_BYTES, GRADIENT_BYTES = 12, 4
#: Bytes a parameter that shards of it send: gathered twice and scattered once, 16 bits each.
_GATHERED = 6
#: Sums over `tensor` for a layer: after attention and after its matrices, forward and backward.
_SUMS = 4
_STREAM = "layer_input"


@dataclasses.dataclass(frozen=True)
class Bound:
    """The least that other meshes take, by the trace of `spread`, with these sets of activations to choose from."""

    spread: Spread
    sketch: Sketch
    sets: Sequence[Kept]
    #: Bytes of a device that a plan may take.
    room: float
    parameters: float

    def seconds(self, other: Spread) -> float:
        """Returns what a step takes at least on the other mesh."""
        held = (STATE_BYTES + GRADIENT_BYTES) * self.parameters
        more = held / other.shards - held / self.spread.shards
        # Shards of a matmul or of experts gather less at a time, at best nothing.
        if other.parts > 1:
            more -= self.sketch.gathered_bytes
        least = self.sketch.least_seconds(self.sets, self.room - more)
        if other.microbatches > 1:
            # Its layers are recomputed, and its stages wait for the first microbatch and for the last.
            return self.sketch.recomputing_seconds() * (1 + (other.stages - 1) / other.microbatches)
        shards = other.total("fsdp")
        sent = sent_bytes("all-reduce", _GATHERED / 2 * self.parameters / other.parts, shards)
        return max(least, self._sent(other, "fsdp", sent)) + self._waited(other)

    def _waited(self, other: Spread) -> float:
        """Returns seconds of sums over `tensor`, between a layer's matmuls."""
        size = other.size("tensor")
        stream = self.sketch.bytes_of(_STREAM) * size
        waited = self._sent(other, "tensor", _SUMS * sent_bytes("all-reduce", stream, size))
        return waited * self.sketch.rates.machine.calibration.waited_share

    def _sent(self, other: Spread, axis: str, sent: float) -> float:
        if other.total(axis) == 1:
            return 0.0
        mesh = {name: other.total(name) for name in MESH_AXES if other.total(name) > 1}
        return sent / self.sketch.rates.link((axis,), mesh).bandwidth


def is_plain(spread: Spread) -> bool:
    """Returns whether a mesh splits rows and parameters alone."""
    return all(name in PLAIN for name, _ in (*spread.axes, *spread.across))
