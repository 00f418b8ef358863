"""SOAP: Adam in the slowly turning eigenbasis of Shampoo's statistics (Vyas et al. 2024, arXiv:2409.11321)."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Epsilon, NonNegative, Partial, Size

from kanawa_runtime.learn.matrices import MatrixLayout, matrix_layout
from kanawa_runtime.learn.scheduled import Flat, ScheduledOptimizer, only_paths


class Soap(ScheduledOptimizer):
    """Each layer's and each expert's matrix has a basis for its fan-in side and one for its fan-out side.

    A side longer than `max_side`, such as a vocabulary, isn't rotated; vectors get Adam. The bases follow every
    `interval` updates by one step of power iteration and a QR decomposition (algorithms 3 and 4). The first update only
    gathers statistics of matrices, and leaves them unchanged but for decay. Statistics and bases are float32.
    """

    class Config(ScheduledOptimizer.Config):
        b1: Partial = 0.95
        b2: Partial = 0.95
        statistics_decay: Partial = 0.95
        interval: Size = 10
        max_side: Size = 10_000
        eps: Epsilon = 1e-8
        weight_decay: NonNegative = 0.1

    @property
    def moments(self) -> dict[str, bool]:
        """Rotated moments, and Adam's of the rest; statistics and bases stay float32."""
        return {"soap/mu": False, "soap/nu": True, "adam/mu": False, "adam/nu": True}

    @property
    def width_exponent(self) -> float:
        """1, as of Adam."""
        return 1.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transforms.

        The state is "soap/mu/…", "soap/nu/…" (rotated), "soap/rows/…", "soap/columns/…" (statistics),
        "soap/row_basis/…", "soap/column_basis/…", "soap/count"; "adam/mu/…", "adam/nu/…", "adam/count" of the rest;
        and "rate/count".
        """
        cfg = self.config
        sides = {path: _Sides.of(layout, cfg.max_side) for path, layout in _matrices(specs).items()}
        sides = {path: side for path, side in sides.items() if side.rows or side.columns}
        rest = [path for path in specs if path not in sides]
        return [
            ("soap", only_paths(sides, self._of_matrices(sides))),
            ("adam", only_paths(rest, optax.scale_by_adam(cfg.b1, cfg.b2, cfg.eps))),
        ]

    def _of_matrices(self, sides: Mapping[str, "_Sides"]) -> optax.GradientTransformation:
        def init(params: Flat) -> SoapState:
            # Each field has its own arrays: the step donates them.
            mu, nu = ({path: jnp.zeros_like(param) for path, param in params.items()} for _ in range(2))
            (rows, columns), (row_basis, column_basis) = _squares(sides), _squares(sides)
            return SoapState(jnp.zeros((), jnp.int32), mu, nu, rows, columns, row_basis, column_basis)

        def update(grads: Flat, state: SoapState, params: Flat | None = None) -> tuple[Flat, SoapState]:
            del params
            fields: dict[str, dict[str, Any]] = {name: {} for name in SoapState._fields if name != "count"}
            updates = {}
            # An accelerator's default rounds matmuls to bfloat16, and a basis of those isn't orthogonal.
            with jax.default_matmul_precision("highest"):
                for path, grad in grads.items():
                    updates[path], new = self._matrix(sides[path], path, grad, state)
                    for name, array in new.items():
                        fields[name][path] = array
            return updates, SoapState(optax.safe_increment(state.count), **fields)

        return optax.GradientTransformation(init, update)

    def _matrix(
        self, sides: "_Sides", path: str, grad: jax.Array, state: "SoapState"
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns one parameter's update before decay and rate, and its new state by field."""
        cfg, layout = self.config, sides.layout
        gradient = layout.to_matrices(grad).astype(jnp.float32)
        old = {name: field[path] for name, field in state._asdict().items() if name != "count" and path in field}
        bases = {side: sides.square(old[f"{side}_basis"]) for side in sides.names}
        outer = {"row": jnp.einsum("nij,nkj->nik", gradient, gradient)} if sides.rows else {}
        outer |= {"column": jnp.einsum("nij,nik->njk", gradient, gradient)} if sides.columns else {}
        keep = cfg.statistics_decay
        statistics = {side: keep * sides.square(old[f"{side}s"]) + (1.0 - keep) * outer[side] for side in sides.names}
        mu, nu = (layout.to_matrices(old[name]).astype(jnp.float32) for name in ("mu", "nu"))
        first = state.count == 0
        turned = _rotated(gradient, bases)
        new_mu = jnp.where(first, mu, cfg.b1 * mu + (1.0 - cfg.b1) * turned)
        new_nu = jnp.where(first, nu, cfg.b2 * nu + (1.0 - cfg.b2) * jnp.square(turned))
        count = state.count.astype(jnp.float32)
        # The first call gave no update, so `count` is how many the moments have seen after this one.
        corrected = [m / jnp.where(first, 1.0, 1.0 - b**count) for m, b in ((new_mu, cfg.b1), (new_nu, cfg.b2))]
        change = _rotated_back(corrected[0] / (jnp.sqrt(corrected[1]) + cfg.eps), bases)
        new_mu, new_nu, bases = self._turned(state.count, new_mu, new_nu, bases, statistics)
        new = {"mu": layout.from_matrices(new_mu).astype(grad.dtype)}
        new["nu"] = layout.from_matrices(new_nu).astype(grad.dtype)
        for side in sides.names:
            new[f"{side}s"] = statistics[side].reshape(old[f"{side}s"].shape)
            new[f"{side}_basis"] = bases[side].reshape(old[f"{side}_basis"].shape)
        return layout.from_matrices(change).astype(grad.dtype), new

    def _turned(
        self, count: jax.Array, mu: jax.Array, nu: jax.Array, bases: dict[str, jax.Array], statistics: Any
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Returns moments and bases for the next update: the bases follow the statistics every `interval` updates."""

        def begin(mu: jax.Array, nu: jax.Array, bases: Any) -> Any:
            found = {side: jnp.flip(jnp.linalg.eigh(statistics[side])[1], -1) for side in bases}
            return mu, nu, found

        def follow(mu: jax.Array, nu: jax.Array, bases: Any) -> Any:
            back = _rotated_back(mu, bases)
            found = {}
            for side, basis in bases.items():
                product = statistics[side] @ basis
                # Power iteration separates directions only in the order of their eigenvalues.
                order = jnp.argsort(-jnp.einsum("nij,nij->nj", basis, product), axis=-1)
                along = -2 if side == "row" else -1
                nu = jnp.take_along_axis(nu, jnp.expand_dims(order, -1 if side == "row" else -2), axis=along)
                found[side] = jnp.linalg.qr(jnp.take_along_axis(product, order[:, None, :], axis=-1))[0]
            return _rotated(back, found), nu, found

        def keep(mu: jax.Array, nu: jax.Array, bases: Any) -> Any:
            return mu, nu, bases

        due = (count % self.config.interval) == 0
        branch = jnp.where(count == 0, 0, jnp.where(due, 1, 2))
        result: tuple[jax.Array, jax.Array, dict[str, jax.Array]]
        result = jax.lax.switch(branch, (begin, follow, keep), mu, nu, bases)
        return result


class SoapState(NamedTuple):
    """Rotated moments, statistics and bases by path; a side that isn't rotated has none."""

    count: Any
    mu: dict[str, Any]
    nu: dict[str, Any]
    rows: dict[str, Any]
    columns: dict[str, Any]
    row_basis: dict[str, Any]
    column_basis: dict[str, Any]


class _Sides(NamedTuple):
    """Which sides of a parameter's matrices are rotated, and where their squares lie in the parameter's dimensions."""

    layout: MatrixLayout
    rows: bool
    columns: bool

    @classmethod
    def of(cls, layout: MatrixLayout, longest: int) -> "_Sides":
        rows, columns = layout.fans
        return cls(layout, rows <= longest, columns <= longest)

    @property
    def names(self) -> tuple[str, ...]:
        return ("row",) * self.rows + ("column",) * self.columns

    def square(self, array: jax.Array) -> Float[Array, "N S S"]:
        """Returns a side's squares as matrices, one for each of the parameter's."""
        side = math.isqrt(array.size // math.prod(self.layout.shape[a] for a in self.layout.batch))
        return array.reshape(-1, side, side)

    def shape(self, side: str) -> tuple[int, ...]:
        """Returns a side's squares in the parameter's dimensions, by which they are sharded.

        The side itself stays where it is; the first dimension of the other side holds its second copy.
        """
        own, other = (
            (self.layout.rows, self.layout.columns) if side == "row" else (self.layout.columns, self.layout.rows)
        )
        length = math.prod(self.layout.shape[a] for a in own)
        return tuple(length if a == other[0] else 1 if a in other else size for a, size in enumerate(self.layout.shape))


def _squares(sides: Mapping[str, _Sides]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns zeros for the squares of rows and of columns, of the sides that are rotated."""
    rows = {path: jnp.zeros(side.shape("row"), jnp.float32) for path, side in sides.items() if side.rows}
    columns = {path: jnp.zeros(side.shape("column"), jnp.float32) for path, side in sides.items() if side.columns}
    return rows, columns


def _matrices(specs: Mapping[str, ParamSpec]) -> dict[str, MatrixLayout]:
    layouts = {path: matrix_layout(spec) for path, spec in specs.items()}
    return {path: layout for path, layout in layouts.items() if layout is not None}


def _rotated(matrices: jax.Array, bases: Mapping[str, jax.Array]) -> jax.Array:
    matrices = jnp.swapaxes(bases["row"], -1, -2) @ matrices if "row" in bases else matrices
    return matrices @ bases["column"] if "column" in bases else matrices


def _rotated_back(matrices: jax.Array, bases: Mapping[str, jax.Array]) -> jax.Array:
    matrices = bases["row"] @ matrices if "row" in bases else matrices
    return matrices @ jnp.swapaxes(bases["column"], -1, -2) if "column" in bases else matrices
