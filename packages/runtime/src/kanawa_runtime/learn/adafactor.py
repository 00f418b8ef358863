"""Adafactor: second moments of a matrix stored as one row and one column (Shazeer and Stern 2018, arXiv:1804.04235)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Count, Epsilon, NonNegative, Positive

from kanawa_runtime.learn.matrices import MatrixLayout, matrix_layout
from kanawa_runtime.learn.scheduled import Flat, ScheduledOptimizer


class Adafactor(ScheduledOptimizer):
    """No first moment. Each layer's and each expert's matrix is factored by itself if both fans reach `min_factored`.

    A ParamSpec with `factored` False keeps a whole second moment. Updates of RMS over `clip_rms` are scaled down
    (None: never). `relative` multiplies each update by the RMS of its parameter, at least `min_rms` (section 8);
    without it the learning rate is Adam's.
    """

    class Config(ScheduledOptimizer.Config):
        decay_exponent: NonNegative = 0.8
        eps: Epsilon = 1e-30
        min_factored: Count = 128
        clip_rms: Positive | None = 1.0
        relative: bool = False
        min_rms: NonNegative = 1e-3
        weight_decay: NonNegative = 0.0

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transforms.

        The state is "adafactor/row/…", "adafactor/column/…" of factored parameters, with ones where they are averaged,
        "adafactor/whole/…" of the others, "adafactor/count" and "rate/count".
        """
        return [("adafactor", self._factored(specs))]

    def _layouts(self, specs: Mapping[str, ParamSpec]) -> dict[str, MatrixLayout]:
        layouts = {path: matrix_layout(spec) for path, spec in specs.items() if spec.factored}
        smallest = self.config.min_factored
        return {path: layout for path, layout in layouts.items() if layout and min(layout.fans) >= smallest}

    def _factored(self, specs: Mapping[str, ParamSpec]) -> optax.GradientTransformation:
        cfg, layouts = self.config, self._layouts(specs)

        def init(params: Flat) -> FactoredState:
            rows = {path: _zeros_without(params[path], a.columns) for path, a in layouts.items()}
            columns = {path: _zeros_without(params[path], a.rows) for path, a in layouts.items()}
            whole = {path: jnp.zeros_like(param) for path, param in params.items() if path not in layouts}
            return FactoredState(jnp.zeros((), jnp.int32), rows, columns, whole)

        def update(grads: Flat, state: FactoredState, params: Flat | None = None) -> tuple[Flat, FactoredState]:
            count = optax.safe_increment(state.count)
            # 0 at the first update: the average starts as that gradient's square, and needs no bias correction.
            keep = 1.0 - count.astype(jnp.float32) ** -cfg.decay_exponent
            row, column, whole, updates = {}, {}, {}, {}
            for path, grad in grads.items():
                square = jnp.square(grad.astype(jnp.float32)) + cfg.eps
                if path in layouts:
                    rows, columns = layouts[path].rows, layouts[path].columns
                    r = row[path] = _averaged(state.row[path], jnp.mean(square, columns, keepdims=True), keep)
                    c = column[path] = _averaged(state.column[path], jnp.mean(square, rows, keepdims=True), keep)
                    # Not of the product: two averages of `eps` would underflow.
                    scale = jax.lax.rsqrt(r / jnp.mean(r, rows, keepdims=True)) * jax.lax.rsqrt(c)
                else:
                    whole[path] = _averaged(state.whole[path], square, keep)
                    scale = jax.lax.rsqrt(whole[path])
                own = tuple(range(specs[path].num_stacked, grad.ndim))
                change = grad * scale.astype(grad.dtype)
                updates[path] = self._sized(change, own, None if params is None else params[path])
            return updates, FactoredState(count, row, column, whole)

        return optax.GradientTransformation(init, update)

    def _sized(self, change: jax.Array, own: tuple[int, ...], param: jax.Array | None) -> jax.Array:
        """Returns the update clipped, and made relative if asked; `own` are the axes of one layer's parameter."""
        cfg = self.config
        if cfg.clip_rms is not None:
            change = change / jnp.maximum(1.0, _rms(change, own) / cfg.clip_rms)
        if not cfg.relative:
            return change
        assert param is not None  # the learner gives them
        return change * jnp.maximum(cfg.min_rms, _rms(param, own))


class FactoredState(NamedTuple):
    """Averages of squared gradients, by path."""

    count: Any
    row: dict[str, Any]
    column: dict[str, Any]
    whole: dict[str, Any]


def _zeros_without(param: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Returns zeros shaped like the parameter, with ones in the axes that are averaged."""
    return jnp.zeros(tuple(1 if a in axes else size for a, size in enumerate(param.shape)), param.dtype)


def _averaged(before: jax.Array, now: jax.Array, keep: jax.Array) -> jax.Array:
    return (keep * before + (1.0 - keep) * now).astype(before.dtype)


def _rms(array: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(array), axes, keepdims=True))
