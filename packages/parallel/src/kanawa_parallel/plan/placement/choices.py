"""The meshes that are tried for a target, the likeliest first, and the activations worth keeping."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kanawa.composition.target import Target
from kanawa.plugins import host

from kanawa_parallel.plan.placement.sketch import Guess, Kept
from kanawa_parallel.remat.modifier import named_policy
from kanawa_parallel.remat.policies import OffloadNames, SaveNames

#: A catalogued modifier and its arguments.
Modifier = tuple[str, Mapping[str, Any]]
#: Beyond this a tensor-parallel group's collectives outlast its matmuls on every link there is.
_TENSOR = (2, 4, 8, 16)
#: Axes that split rows and parameters alone.
PLAIN = frozenset(("data", "fsdp"))
_STAGES = (2, 4, 8, 16)
#: A pipeline has at most so many microbatches a stage: more would hardly shorten it.
_MOST_A_STAGE = 8
#: Of a batch: more would leave a device nothing to do at once.
_MOST_SLICES = 32
#: Names that are kept together or not at all.
_TOGETHER = (("query", "key", "value"), ("attention_out", "attention_residuals"))
#: Groups of names whose combinations are tried; the rest is recomputed.
_MOST_GROUPS = 7
#: What the loop over layers holds anyway: it is sent away or stays. And what fused kernels need at once.
_HELD, _STAYS = "layer_input", frozenset(("attention_out",))


@dataclasses.dataclass(frozen=True)
class Spread:
    """Axes inside a slice and between slices; `microbatches` are a pipeline's, where an axis is `stage`."""

    axes: tuple[tuple[str, int], ...]
    across: tuple[tuple[str, int], ...] = ()
    microbatches: int = 1

    @property
    def shards(self) -> int:
        """In how many parts parameters are."""
        parts = 1
        for name, size in (*self.axes, *self.across):
            parts *= size if name in ("fsdp", "tensor", "expert", "stage") else 1
        return parts

    def size(self, axis: str) -> int:
        """In how many parts an axis is inside a slice."""
        return dict(self.axes).get(axis, 1)

    def total(self, axis: str) -> int:
        """In how many parts an axis is, slices included."""
        return self.size(axis) * dict(self.across).get(axis, 1)

    @property
    def batch_parts(self) -> int:
        """In how many parts a batch's rows are."""
        parts = 1
        for name in ("replica", "data", "fsdp", "expert"):
            parts *= self.total(name)
        return parts

    def narrows(self, other: "Spread") -> bool:
        """Returns whether the other mesh differs by a larger `tensor` in place of shards or copies."""
        plain = PLAIN | {"tensor"}
        alike = all(name in plain for spread in (self, other) for name, _ in (*spread.axes, *spread.across))
        return alike and 1 < self.size("tensor") < other.size("tensor")

    @property
    def stages(self) -> int:
        """How many stages a pipeline has."""
        return self.total("stage")

    @property
    def parts(self) -> int:
        """In how many parts a layer's work is, apart from rows."""
        return self.total("tensor") * self.total("expert") * self.stages

    def __str__(self) -> str:
        inside = " x ".join(f"{name} {size}" for name, size in self.axes)
        between = " x ".join(f"{name} {size}" for name, size in self.across)
        piped = f" of {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"{inside}{piped}, between slices {between}" if between else f"{inside}{piped}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """A mesh, what the backward pass keeps, and slices of the batch, with what they would take.

    `away` is what sending the optimizer's state to the host adds; `fixed_bytes` don't depend on the batch.
    """

    spread: Spread
    kept: Kept
    microbatches: int
    guess: Guess
    away: Guess = Guess(0.0, 0.0)
    fixed_bytes: float = 0.0
    optimizer_away: bool = False

    @property
    def changes(self) -> int:
        """How far it is from the plainest: axes, slices, and names that go to the host."""
        return len(self.spread.axes) + (self.microbatches > 1) + len(self.kept.offload)

    def modifiers(self, keeps_policy: bool) -> list[Modifier]:
        """Returns the catalogued modifiers that make it so, without a policy where that isn't placement's to choose."""
        made: list[Modifier] = list(pipelined(self.spread))
        if not keeps_policy:
            name = policy_name(self.kept)
            sets = {"save": tuple(sorted(self.kept.save)), "offload": tuple(sorted(self.kept.offload))}
            made.append(("remat", {"policy": name} if name else {key: names for key, names in sets.items() if names}))
        if self.microbatches > 1:
            made.append(("accumulate", {"microbatches": self.microbatches}))
        if self.optimizer_away:
            made.append(("offload-optimizer", {}))
        return made

    def with_optimizer_away(self) -> "Choice":
        """Returns the same with the optimizer's state in the host's memory between steps."""
        seconds, size = self.guess.seconds + self.away.seconds, self.guess.memory_bytes + self.away.memory_bytes
        return dataclasses.replace(self, guess=Guess(seconds, size), optimizer_away=self.away.memory_bytes < 0)

    def taking(self, slower: float, larger: float) -> "Choice":
        """Returns the same with so many times the seconds and the memory."""
        guess = Guess(self.guess.seconds * slower, self.guess.memory_bytes * larger)
        return dataclasses.replace(self, guess=guess)

    def __str__(self) -> str:
        name = policy_name(self.kept)
        sets = (("keeping", self.kept.save), ("offloading", self.kept.offload))
        held = f"remat {name}" if name else " and ".join(f"{way} {', '.join(sorted(n))}" for way, n in sets if n)
        cut = f", {self.microbatches} microbatches" if self.microbatches > 1 else ""
        return f"{self.spread}, {held}{cut}{', the optimizer offloaded' if self.optimizer_away else ''}"


def policy_name(kept: Kept) -> str:
    """Returns the catalogued policy that keeps this; "" if there is none."""
    named = {Kept(): "full"}
    for state in host().components("remat"):
        policy = named_policy(state.name) if state.state.usable else None
        if isinstance(policy, (SaveNames.Config, OffloadNames.Config)):
            offload = policy.offload if isinstance(policy, OffloadNames.Config) else ()
            named.setdefault(Kept(frozenset(policy.save), frozenset(offload)), state.name)
    return named.get(kept, "")


def pipelined(spread: Spread) -> tuple[Modifier, ...]:
    """Returns the modifier that makes stages of a model's layers; nothing for a mesh without stages."""
    cut = {"microbatches": spread.microbatches, "schedule": "1f1b"}
    return (("pipeline", cut),) if spread.microbatches > 1 else ()


def spreads(target: Target, state_bytes: float, experts: int, rows: int = 0) -> list[Spread]:
    """Returns the meshes to try, in order, for a training state of so many bytes and a batch of so many rows.

    First what splits rows and parameters alone: parameters over all devices of a slice, then over the fewest whose
    shards leave half of the memory free, by whole fast domains. Then what splits experts or matmuls too, over several
    slices parameters over all of them, and last rows' tokens, where rows are fewer than devices, and stages of layers.
    """
    devices = target.jax_devices // target.slices
    device = target.device
    domain = min(devices, device.domain_chips * device.jax_devices_per_chip)
    limit = device.memory_bytes / device.jax_devices_per_chip
    step = 1 if domain == devices else domain

    def over(rest: int, parts: int) -> list[tuple[tuple[str, int], ...]]:
        fewest = [size for size in (1, *_divisors(rest)) if size % step == 0 or size == 1]
        enough = next((size for size in fewest if state_bytes / (size * parts) <= limit / 2), rest)
        sizes = (rest, enough) if step == 1 else (enough, rest)
        return [(("data", rest // fsdp), ("fsdp", fsdp)) for fsdp in dict.fromkeys(sizes)]

    inside = over(devices, 1)
    # With few devices left for `fsdp`, all that isn't an expert would be held nearly whole.
    fits = [size for size in _divisors(devices) if experts % size == 0 and size <= domain and size**2 <= 8 * devices]
    for size in fits[-1:] + [size for size in fits if size * 4 == fits[-1]]:
        inside += [(*axes, ("expert", size)) for axes in over(devices // size, size)[:1]]
    for size in _TENSOR:
        if size <= domain and devices % size == 0:
            inside += [(*axes, ("tensor", size)) for axes in over(devices // size, size)[:1]]
    across = [(("data", target.slices),), (("fsdp", target.slices),)] if target.slices > 1 else [()]
    made = [Spread(axes, between) for between in across for axes in inside]
    few = 0 < rows < target.jax_devices
    for size in (2**n for n in range(1, devices.bit_length()) if devices % 2**n == 0 and few):
        made += [Spread(((*axes, ("context", size))), across[0]) for axes in over(devices // size, 1)[:1]]
    for size in (size for size in _TENSOR if few and size <= domain and devices % size == 0):
        # With both, rows are in as many parts as they can be.
        left = [
            rest for rest in _divisors(devices) if devices % (rest * size) == 0 and rows % (rest * target.slices) == 0
        ]
        rest = max(left, default=1)
        made.append(Spread((("fsdp", rest), ("context", devices // (rest * size)), ("tensor", size)), across[0]))
    for size in (size for size in _STAGES if devices % size == 0):
        (axes,) = over(devices // size, size)[:1]
        replicas = target.jax_devices // size
        counts = [n for n in _divisors(rows // replicas) if n <= _MOST_A_STAGE * size] if rows % replicas == 0 else []
        made += [Spread((("stage", size), *axes), across[0], n) for n in counts[-1:] if n > 1]
    return list(dict.fromkeys(dataclasses.replace(one, axes=_split(one.axes)) for one in made))


def _split(axes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for name, size in axes if size > 1) or (("fsdp", 1),)


def _divisors(count: int) -> list[int]:
    return [size for size in range(2, count + 1) if count % size == 0]


def kept_sets(tags: Sequence[str]) -> Iterator[Kept]:
    """Yields what may be kept of these tags: each group kept, sent to the host's memory, or recomputed."""
    known = [group for group in _TOGETHER if set(group) <= set(tags)]
    alone = [(tag,) for tag in tags if not any(tag in group for group in known)]
    groups = sorted([*known, *alone], key=lambda group: group[0] != _HELD)[:_MOST_GROUPS]
    ways = ["ro" if group[0] == _HELD else "rs" if group[0] in _STAYS else "rso" for group in groups]
    for choice in itertools.product(*ways):
        picked = [(name, way) for group, way in zip(groups, choice, strict=True) for name in group]
        yield Kept(*(frozenset(name for name, way in picked if way == wanted) for wanted in "so"))


def slices_of(rows: int, mesh: Mapping[str, int]) -> list[int]:
    """Returns in how many slices the rows of a batch can pass through a mesh."""
    shards = 1
    for name, size in mesh.items():
        shards *= size if name in ("replica", "data", "fsdp", "expert") else 1
    return [count for count in range(1, _MOST_SLICES + 1) if rows % (count * shards) == 0]
