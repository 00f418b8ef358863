"""Ranges of numbers, declared with the field: `num_heads: kn.Size`, `rate: Annotated[float, kn.Range(0, 1)] = 0.5`.

A value outside is refused where it is assigned, so that a command line hears of it beside all else that is wrong.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field takes, both ends among them; NaN never.

    Attributes:
        low: the least; minus infinity for none.
        high: the greatest.
        above: refuses `low` itself.
        below: refuses `high` itself.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        # Written so that a NaN, which compares to nothing, is outside.
        over = self.low < value if self.above else self.low <= value
        under = value < self.high if self.below else value <= self.high
        return over and under

    def __str__(self) -> str:
        # The limits of the machine's integers are reported when they are exceeded (`beyond`), not in every list.
        least = f"{'above' if self.above else 'at least'} {self.low:,}" if self.low > -math.inf else ""
        if self.high >= MOST:
            most = "finite" if self.below else ""
        else:
            most = f"{'below' if self.below else 'at most'} {self.high:,}"
        return ", ".join(filter(None, (least, most))) or "not NaN"

    def beyond(self, value: float) -> str:
        """Returns by which limit a value is too great that the text of the range leaves out; else nothing."""
        unsaid = MOST <= self.high < math.inf and value > self.high
        return f"it is more than {self.high:,}" if unsaid else ""


@dataclass(frozen=True, slots=True)
class Usual:
    """The sizes of numbers that make sense, whatever their sign: a field takes others, with a warning."""

    low: float = 1e-12
    high: float = 1e6

    def warning(self, value: float) -> str:
        """Returns what is odd about a value; empty for a usual one."""
        if abs(value) < self.low:
            return "so small that it switches off what it is for"
        return "so large that it drowns all else" if abs(value) > self.high else ""


@dataclass(frozen=True, slots=True)
class Named:
    """The kind of component that a name given for a field means: `reward: Annotated[Callable, kn.Named("rewards")]`."""

    kind: str


MOST = 2**31 - 1  # an axis of an array, and what counts along it: kernels index by 32 bits

#: A size or a count of which there must be one: heads, layers, rows, steps.
Size = Annotated[int, Range(1, MOST)]
#: A count that may be nothing: warm-up steps, an offset.
Count = Annotated[int, Range(0, MOST)]
#: What random numbers are drawn from.
Seed = Annotated[int, Range(0, 2**63 - 1)]
#: A share of a whole, the whole too.
Fraction = Annotated[float, Range(0, 1)]
#: A share that must leave some: a dropout rate, a decay of averages.
Partial = Annotated[float, Range(0, 1, below=True)]
#: A finite number that may be nothing: a rate, a coefficient, an epsilon.
NonNegative = Annotated[float, Range(0, below=True), Usual(0, 1e12)]
#: What is added before dividing: float32 must be able to hold it, for 0 / 0 is NaN.
Epsilon = Annotated[float, Range(1e-37, 1)]
#: A finite number that others are multiplied or divided by.
Positive = Annotated[float, Range(0, above=True, below=True), Usual(0, 1e12)]
#: A finite number that may be nothing, but 0 and huge ones are warned of: a learning rate, the coefficient of a loss.
Strength = Annotated[float, Range(0, below=True), Usual()]
#: Any number but infinities and NaN.
Finite = Annotated[float, Range(above=True, below=True)]
#: What layers compute in, and what state is stored in: JAX cuts float64 short, and smaller dtypes need scales.
FloatDtype = Literal["float32", "bfloat16", "float16"]
