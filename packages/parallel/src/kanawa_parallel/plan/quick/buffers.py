"""Which values of a laid-out program take memory, from when to when, and what each step reads and writes.

Compilers fuse elementwise work into what reads it, so such a value takes memory only where a matmul, a kernel or a loop
reads it, or where it leaves its scope. Until then what it is made of stays.
"""

import dataclasses
import functools

from kanawa_parallel.plan.quick.equations import Value, scan_parts
from kanawa_parallel.plan.quick.layout import local_bytes
from kanawa_parallel.plan.quick.rules import is_elementwise
from kanawa_parallel.plan.quick.walk import SAME, Step, Walked

#: What is fused into its reader although its result has another shape than what it reads.
_RESHAPING = frozenset(("broadcast_in_dim", "iota", "slice", "dynamic_slice", "pad", "concatenate", "split", "rev"))
#: What has its own elementwise inputs fused into it.
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax"))
_SLICES = frozenset(("slice", "dynamic_slice", "gather", "split"))
#: Always a step of its own, though shapes may be alike.
_OWN = frozenset(
    ("dot_general", "cumsum", "cumlogsumexp", "cummax", "cumprod", "sort", "ppermute", "fft", "rng_bit_generator")
    + ("gather", "scatter", "scatter-add")
)


@dataclasses.dataclass
class Buffer:
    """A value in memory: its bytes on a device, and the first and last step that it is there for.

    `path` is the name stack of what makes it, `tag` the name that its layer gave it; `stacked` if a loop saves one an
    iteration.
    """

    value: Value
    bytes: float
    start: int
    end: int
    path: str
    tag: str = ""
    stacked: bool = False


@dataclasses.dataclass
class Pass:
    """One fused pass over memory: the step that asks for it, and the bytes it reads and writes; `heavy` if it is that
    step's own, not elementwise work before it.
    """

    step: int
    path: str
    bytes: float
    heavy: bool = False


class Memory:
    """The memory of one scope; `peak` is its temporaries' fullest moment, inner scopes included.

    A scope's inputs belong to its caller. `in_place` if its outputs take the place of inputs, as a step's do.
    """

    def __init__(self, walked: Walked, in_place: bool = False) -> None:
        """Finds buffers, their spans and the passes over them."""
        self.walked = walked
        self.inner = {id(w): Memory(w) for step in walked.steps for _, w in step.inner}
        self._maker = {out: i for i, step in enumerate(walked.steps) for out in step.equation.outputs}
        self._root: dict[Value, Value] = {}
        self._bytes: dict[Value, float] = {}
        self._tags: dict[Value, str] = {}
        self._heavy = [self._is_heavy(step) for step in walked.steps]
        self._name_roots()
        self._views = {out for step in walked.steps for out in self._views_of(step)}
        self._stored = self._find_stored() - self._views
        self.buffers: dict[Value, Buffer] = {}
        self.passes: list[Pass] = []
        self._sources = functools.cache(self._find_sources)
        self._run(in_place)
        self.peak, self.at_peak = self._fullest()

    def size(self, value: Value) -> float:
        """Returns a device's bytes of a value's memory."""
        root = self._of(value)
        return self._bytes.get(root, self.walked.bytes(root))

    def _of(self, value: Value) -> Value:
        return self._root.get(value, value)

    def _is_heavy(self, step: Step) -> bool:
        eqn = step.equation
        if step.inner or step.moves or eqn.name in _OWN:
            return True
        if eqn.name in SAME or eqn.name in _RESHAPING:
            return False
        return not is_elementwise(eqn)

    def _name_roots(self) -> None:
        """Finds values that are others under another name, and results that are narrowed as they are written."""
        readers: dict[Value, list[Step]] = {}
        for step in self.walked.steps:
            for value in step.equation.inputs:
                if value is not None:
                    readers.setdefault(value, []).append(step)
        for i, step in enumerate(self.walked.steps):
            eqn = step.equation
            if eqn.name in SAME and not self._heavy[i]:
                for value, out in zip(eqn.inputs, eqn.outputs, strict=False):
                    if value is not None:
                        self._root[out] = self._of(value)
                        if eqn.name == "name":
                            self._tags[self._of(value)] = str(eqn.params["name"])
            value = eqn.inputs[0] if eqn.name == "convert_element_type" else None
            if value is None or value.bits < eqn.outputs[0].bits or value not in self._maker:
                continue
            product = self.walked.steps[self._maker[value]].equation.name
            if product == "dot_general" and len(readers[value]) == 1 and value not in self.walked.scope.outputs:
                self._root[eqn.outputs[0]] = value
                self._bytes[value] = self.walked.bytes(eqn.outputs[0])

    def _find_stored(self) -> set[Value]:
        """Returns the elementwise results that are written to memory."""
        stored = {self._of(value) for value in self.walked.scope.outputs if value is not None}
        for i, step in enumerate(self.walked.steps):
            eqn = step.equation
            if eqn.name == "optimization_barrier" or (self._heavy[i] and eqn.name not in _REDUCTIONS):
                stored |= {self._of(value) for value in eqn.inputs if value is not None and not self._is_splat(value)}
        return stored

    def _views_of(self, step: Step) -> list[Value]:
        """Returns a step's result if it is one layer's part of stacked parameters, which is read where it lies."""
        eqn = step.equation
        whole = eqn.inputs[0] if eqn.name == "slice" and not step.moves else None
        if whole is None or self._of(whole) in self._maker or whole.shape[1:] != eqn.outputs[0].shape[1:]:
            return []
        return [eqn.outputs[0]]

    def _is_splat(self, value: Value) -> bool:
        """Returns whether a value is one number in every place, which is written wherever it is read."""
        made = self._maker.get(self._of(value))
        eqn = None if made is None else self.walked.steps[made].equation
        return eqn is not None and eqn.name == "broadcast_in_dim" and not any(v and v.shape for v in eqn.inputs)

    def _find_sources(self, value: Value) -> dict[Value, float]:
        """Returns what reading a value reads from memory, in bytes."""
        value = self._of(value)
        made = self._maker.get(value)
        if made is None or self._heavy[made] or value in self._stored or value in self._views:
            return {value: self.size(value)}
        step = self.walked.steps[made]
        limit = self.size(value) if step.equation.name in _SLICES else float("inf")
        read: dict[Value, float] = {}
        for operand in step.equation.inputs:
            for source, size in (self._sources(operand) if operand is not None else {}).items():
                read[source] = max(read.get(source, 0.0), min(size, limit))
        return read

    def _use(self, value: Value, at: int) -> float:
        """Has a value in memory at a step; returns the bytes that are read of it."""
        total = 0.0
        for source, size in self._sources(value).items():
            self._make(source, at)
            if source in self.buffers:
                self.buffers[source].end = max(self.buffers[source].end, at)
            total += size
        return total

    def _make(self, value: Value, at: int) -> None:
        """Writes a stored elementwise result at its first reader, from what it is made of."""
        made = self._maker.get(value)
        if value in self.buffers or value in self._views or made is None or self._heavy[made]:
            return
        step = self.walked.steps[made]
        self._new(value, at, step)
        reads = sum(self._use(operand, at) for operand in step.equation.inputs if operand is not None)
        moved = 2 * self.size(value) if step.equation.name in _SLICES else reads + self.size(value)
        self.passes.append(Pass(at, step.equation.path, moved))

    def _new(self, value: Value, at: int, step: Step) -> None:
        tag = self._tags.get(value, "")
        self.buffers[value] = Buffer(value, self.size(value), at, at, step.equation.path, tag)

    def _run(self, in_place: bool) -> None:
        last = len(self.walked.steps)
        for i, step in enumerate(self.walked.steps):
            eqn = step.equation
            if self._heavy[i]:
                self._run_step(i, step)
                continue
            for out in eqn.outputs:
                # What leaves the scope is written where it is computed; what is read inside, at its first reader.
                if self._of(out) is out and out in self._stored and out in self._leaving:
                    self._make(out, i)
        for value in self.walked.scope.outputs:
            if value is not None and self._maker.get(self._of(value)) is not None:
                self._use(value, last)
                root = self._of(value)
                if in_place and root in self.buffers:
                    self.buffers[root].bytes = 0.0

    @functools.cached_property
    def _leaving(self) -> set[Value]:
        return {self._of(value) for value in self.walked.scope.outputs if value is not None}

    def _run_step(self, i: int, step: Step) -> None:
        eqn = step.equation
        # A carry is updated in place: its start needs no memory beside it.
        first, carry = scan_parts(eqn.params) if eqn.name == "scan" else (0, 0)
        carried = range(first, first + carry)
        read = 0.0
        for at, operand in enumerate(eqn.inputs):
            if operand is None:
                continue
            used = self._use(operand, i - (at in carried))
            taken = eqn.name == "gather" and at == 0
            written_over = eqn.name.startswith("scatter") and at == 0
            read += min(used, self.size(eqn.outputs[0])) if taken else 0.0 if written_over else used
        for out in eqn.outputs:
            self._new(out, i, step)
        if eqn.name == "scan":
            self._name_stacked(step, carried=len(carried))
        if not step.inner and eqn.name not in SAME:
            self.passes.append(Pass(i, eqn.path, read + sum(map(self.size, eqn.outputs)), heavy=True))

    def _name_stacked(self, step: Step, carried: int) -> None:
        """Names what a loop stacks after what its body makes: that value knows its layer and its tag."""
        inner = self.inner[id(step.inner[0][1])]
        outputs = inner.walked.scope.outputs
        for out, value in list(zip(step.equation.outputs, outputs, strict=True))[carried:]:
            if value is None:
                continue
            root = inner._of(value)
            made = inner._maker.get(root)
            buffer = self.buffers[out]
            buffer.stacked = True
            buffer.tag = inner._tags.get(root, "")
            buffer.path = buffer.path if made is None else inner.walked.steps[made].equation.path

    def _fullest(self) -> tuple[float, list[Buffer]]:
        """Returns the most bytes that are alive at a step, and the buffers then."""
        best, best_step = 0.0, 0
        count = len(self.walked.steps) + 1
        change = [0.0] * (count + 1)
        for buffer in self.buffers.values():
            change[max(buffer.start, 0)] += buffer.bytes
            change[min(buffer.end, count - 1) + 1] -= buffer.bytes
        alive = 0.0
        for i in range(count):
            alive += change[i]
            total = alive + (self._extra(self.walked.steps[i]) if i < count - 1 else 0.0)
            if total > best:
                best, best_step = total, i
        here = [b for b in self.buffers.values() if b.start <= best_step <= b.end and b.bytes]
        if best_step < count - 1:
            step = self.walked.steps[best_step]
            here += [
                Buffer(v, size, best_step, best_step, step.equation.path, "gathered") for v, size in self._moved(step)
            ]
            inner = [self.inner[id(w)] for _, w in step.inner]
            here += max(inner, key=lambda memory: memory.peak).at_peak if inner else []
        return best, here

    def _extra(self, step: Step) -> float:
        inner = max((self.inner[id(w)].peak for _, w in step.inner), default=0.0)
        return inner + sum(size for _, size in self._moved(step))

    def _moved(self, step: Step) -> list[tuple[Value, float]]:
        """Returns operands that a step takes in another layout than they lie in: copies that live as long as it."""
        if step.equation.name in SAME or step.inner:
            return []
        taken = {at for at, _ in step.moves}
        return [
            (value, local_bytes(value, step.inputs[at], self.walked.mesh))
            for at in sorted(taken)
            if (value := step.equation.inputs[at]) is not None
        ]
