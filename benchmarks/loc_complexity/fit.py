"""Least squares of y = a + b N + c M + d N M, in fractions: a coefficient is 0 or it isn't."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Fit:
    """The coefficients and the largest absolute residual, exact."""

    constant: Fraction
    per_model: Fraction
    per_variant: Fraction
    per_pair: Fraction
    residual: Fraction

    @property
    def is_constant(self) -> bool:
        """Whether neither models nor variants cost anything."""
        return self.per_model == self.per_variant == self.per_pair == 0

    def __str__(self) -> str:
        a, b, c, d, r = (float(getattr(self, f)) for f in self.__dataclass_fields__)
        return f"a={a:g} b={b:g} c={c:g} d={d:g} residual={r:g}"


def fit(points: Mapping[tuple[int, int], int]) -> Fit:
    """Returns the fit of {(N, M): y}."""
    rows = [((1, n, m, n * m), y) for (n, m), y in points.items()]
    normal = [[Fraction(sum(x[i] * x[j] for x, _ in rows)) for j in range(4)] for i in range(4)]
    right = [Fraction(sum(x[i] * y for x, y in rows)) for i in range(4)]
    solution = _solved(normal, right)
    residual = max(abs(y - sum(s * x for s, x in zip(solution, xs, strict=True))) for xs, y in rows)
    return Fit(*solution, residual)


def _solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Returns the solution by elimination; the matrix has full rank for two or more values of N and of M."""
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(4):
        pivot = next(r for r in range(i, 4) if table[r][i])
        table[i], table[pivot] = table[pivot], table[i]
        table[i] = [value / table[i][i] for value in table[i]]
        for r in range(4):
            if r != i:
                table[r] = [x - table[r][i] * y for x, y in zip(table[r], table[i], strict=True)]
    return [row[4] for row in table]
