"""Problems that a kernel accepts, generated: random features of real problems, those that the kernel supports.

Most random problems meet some limit of any one kernel (lengths in multiples of 128, no sinks). What it refuses is bent
towards what it accepts, one feature at a time, so that a sweep tests combinations instead of counting refusals.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from kanawa.errors import KernelError, did_you_mean
from kanawa.kernels.operation import Kernel
from kanawa.plugins import DeviceSpec
from kanawa.testing.compare import Refusal, Sweep

#: A value for every feature.
Choice = dict[str, Any]

#: Random problems drawn for each one that is returned.
_DRAWN_PER_KEPT = 12
_FEWEST_DRAWN = 200
#: Problems that a kernel accepts, from which refused ones are bent: enough for all of its modes.
_BASES = 24
_ALIKE = 4
#: Refused problems whose neighbours are looked at before giving up.
_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Space:
    """The features of an operation's problems.

    Attributes:
        features: the values of each, the plainest first.
        build: makes the problem of a choice; None where its values can't meet.
    """

    features: Mapping[str, tuple[Any, ...]]
    build: Callable[[Mapping[str, Any]], Any | None]

    def narrowed(self, narrow: Mapping[str, tuple[Any, ...]]) -> "Space":
        """Returns the space with some features' values replaced; raises KernelError for an unknown feature."""
        for name in narrow:
            if name not in self.features:
                message = (
                    f"no feature {name!r} to narrow the sweep by{did_you_mean(name, self.features)}; "
                    f"there are {', '.join(self.features)}"
                )
                raise KernelError(message)
        return dataclasses.replace(self, features={**self.features, **narrow})

    def generate(self, kernel: Kernel, count: int, *, device: DeviceSpec | None = None, seed: int = 0) -> Sweep:
        """Returns up to `count` problems that the kernel accepts; the same ones for the same seed."""
        search = Search(kernel, self, device, np.random.default_rng(seed))
        bases = search.bases()
        candidates: dict[Any, Choice] = {}
        if bases:
            for _ in range(max(_FEWEST_DRAWN, _DRAWN_PER_KEPT * count)):
                choice = search.bend(search.draw(), bases[search.rng.integers(len(bases))])
                candidates.setdefault(self.build(choice), choice)
        return Sweep(_cover(candidates, count), tuple(search.refusals.values()))


def as_fields(problem: Callable[..., Any], **several: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a `Space.build`: each feature is the problem's field of its name, or `several` fields, one a value."""

    def build(choice: Mapping[str, Any]) -> Any:
        fields = {name: value for name, value in choice.items() if name not in several}
        for feature, names in several.items():
            fields |= zip(names, choice[feature], strict=True)
        return problem(**fields)

    return build


class Search:
    """Asks a kernel about choices, and remembers why it refused."""

    def __init__(self, kernel: Kernel, space: Space, device: Any, rng: np.random.Generator) -> None:
        self.kernel, self.space, self.device, self.rng = kernel, space, device, rng
        self.refusals: dict[Any, Refusal] = {}
        self._accepted: dict[Any, bool] = {}

    def accepts(self, choice: Choice) -> bool:
        """Returns whether the kernel accepts the problem of a choice; False where there is none."""
        problem = self.space.build(choice)
        if problem is None:
            return False
        if problem not in self._accepted:
            verdict = self.kernel.verdict(problem, self.device)
            self._accepted[problem] = bool(verdict)
            if not verdict:
                self.refusals[problem] = Refusal(problem, verdict.reason)
        return self._accepted[problem]

    def draw(self) -> Choice:
        """Returns a random choice; about half of the features are plain, as in real problems."""
        return {name: self._value(values) for name, values in self.space.features.items()}

    def _value(self, values: tuple[Any, ...]) -> Any:
        if len(values) == 1 or self.rng.random() < 0.5:
            return values[0]
        return values[1 + self.rng.integers(len(values) - 1)]

    def bases(self) -> list[Choice]:
        """Returns choices that the kernel accepts: random ones, and what is reached from the plain one."""
        drawn = (self.draw() for _ in range(_FEWEST_DRAWN))
        accepted = [choice for choice in drawn if self.accepts(choice)][:_BASES]
        return accepted if len(accepted) == _BASES else [*accepted, *itertools.islice(self._climb(), _BASES)]

    def _climb(self) -> Iterator[Choice]:
        """Yields accepted choices, reached by changing what a refusal names: a new reason is a step forward."""
        plain = {name: values[0] for name, values in self.space.features.items()}
        waiting = collections.deque([plain])
        met: set[str] = set()
        for _ in range(_STEPS):
            if not waiting:
                return
            accepted = 0
            for choice in self._changes(waiting.popleft()):
                if self.accepts(choice):
                    yield choice
                    accepted += 1
                    # What is one change away is alike; other modes are further on in the queue.
                    if accepted == _ALIKE:
                        break
                else:
                    problem = self.space.build(choice)
                    # Sizes differ between reasons that say the same.
                    reason = "" if problem is None else re.sub(r"[0-9.]+", "#", self.refusals[problem].reason)
                    if reason and reason not in met:
                        met.add(reason)
                        waiting.append(choice)

    def _changes(self, choice: Choice) -> Iterator[Choice]:
        """Yields the choice itself, those that differ in one feature, and in two where one alone can't be built."""
        yield choice
        others = [(name, value) for name, values in self.space.features.items() for value in values]
        for name, value in others:
            changed = {**choice, name: value}
            yield changed
            if self.space.build(changed) is None:
                for other, second in others:
                    yield {**changed, other: second}

    def bend(self, drawn: Choice, base: Choice) -> Choice:
        """Returns `base` with as many of the drawn values as are accepted, and others where they aren't."""
        if self.accepts(drawn):
            return drawn
        bent = dict(base)
        names = list(self.space.features)
        for index in self.rng.permutation(len(names)):
            name = names[index]
            values = self.space.features[name]
            # The drawn value first. Then any: of a length that is refused, one that fits the kernel's blocks.
            shuffled = [values[i] for i in self.rng.permutation(len(values))]
            for value in (drawn[name], *shuffled):
                if value == bent[name] or self.accepts({**bent, name: value}):
                    bent[name] = value
                    break
        return bent


def _cover(candidates: dict[Any, Choice], count: int) -> tuple[Any, ...]:
    """Returns `count` problems, each the one that adds most features, then pairs of features, not yet met."""
    left = {problem: _met(choice) for problem, choice in candidates.items()}
    seen: set[Any] = set()
    chosen: list[Any] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda problem: _gain(left[problem] - seen))
        chosen.append(best)
        seen |= left.pop(best)
    return tuple(chosen)


def _met(choice: Choice) -> set[Any]:
    singles = list(choice.items())
    return {*singles, *itertools.combinations(singles, 2)}


def _gain(new: set[Any]) -> tuple[int, int]:
    singles = sum(isinstance(item[0], str) for item in new)
    return singles, len(new)
