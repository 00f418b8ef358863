"""Muon: momentum of hidden matrices, orthogonalised by Newton-Schulz; AdamW for everything else."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from kanawa.arrays.spec import ParamSpec
from kanawa.config import Epsilon, FloatDtype, NonNegative, Partial, Positive, Size
from kanawa.contracts.optimizer import Schedule

from kanawa_runtime.learn.dealt_matrices import normalised, on_owners, shards_of
from kanawa_runtime.learn.matrices import MatrixLayout, hidden_matrices
from kanawa_runtime.learn.scheduled import Flat, ScheduledOptimizer, only_paths

#: The coefficients of Keller Jordan's Muon: steepest at zero, so small singular values grow fastest. They bring every
#: singular value into about [0.7, 1.2], not to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: Elements of the matrices that a device orthogonalises at once.
_AT_ONCE = 1 << 28


def orthogonalised(matrices: Float[Array, "N I O"], steps: int, dtype: str) -> Float[Array, "N I O"]:
    """Returns matrices of the same singular vectors whose singular values are about 1, in the input's dtype.

    Computed in `dtype`; bfloat16 is enough (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).
    """
    # The iteration converges for singular values up to 1 only, and the Frobenius norm bounds the largest.
    return newton_schulz(normalised(matrices, dtype), steps).astype(matrices.dtype)


def newton_schulz(x: Float[Array, "N I O"], steps: int) -> Float[Array, "N I O"]:
    """Returns matrices of singular values up to 1 after `steps` iterations, computed in their dtype."""
    # Of the two products of a matrix with its transpose, the smaller one has the same singular values.
    tall = x.shape[-2] > x.shape[-1]
    x = jnp.swapaxes(x, -1, -2) if tall else x
    a, b, c = (jnp.asarray(value, x.dtype) for value in COEFFICIENTS)
    for _ in range(steps):
        gram = x @ jnp.swapaxes(x, -1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return jnp.swapaxes(x, -1, -2) if tall else x


class Muon(ScheduledOptimizer):
    """Each layer's and each expert's matrix is orthogonalised by itself, from fan-in to fan-out axes of its ParamSpec.

    So are query, key and value, or gate and up, of one fused weight. On a mesh each device orthogonalises whole
    matrices, as many as any other, which travel by all-to-all (`dealt_matrices`). Embeddings, heads, norms and biases
    get Adam with `b1`, `b2`, `eps`, at `adam_rate` times the learning rate. Updates of matrices are scaled by
    `rms` x sqrt(max(fan_in, fan_out)), Adam's usual size, so learning rate and decay carry over from AdamW
    (Moonlight, arXiv:2502.16982, section 2.2); `rms` None scales by sqrt(max(1, fan_out / fan_in)), as Jordan does.
    """

    class Config(ScheduledOptimizer.Config):
        momentum: Partial = 0.95
        nesterov: bool = True
        newton_schulz_steps: Size = 5
        newton_schulz_dtype: FloatDtype = "bfloat16"
        rms: Positive | None = 0.2
        b1: Partial = 0.9
        b2: Partial = 0.95
        eps: Epsilon = 1e-8
        adam_rate: Positive = 1.0
        weight_decay: NonNegative = 0.1

    @property
    def moments(self) -> dict[str, bool]:
        """The momentum of matrices, and Adam's moments of the rest."""
        return {"muon/momentum": False, "adam/mu": False, "adam/nu": True}

    @property
    def width_exponent(self) -> float:
        """1/2 where updates have Adam's size, else 0: an orthogonal update of Jordan's scale suits any width."""
        return 0.0 if self.config.rms is None else 0.5

    def links(self, specs: Mapping[str, ParamSpec]) -> list[tuple[str, optax.GradientTransformation]]:
        """Returns the transforms.

        The state is "muon/momentum/…" of matrices, "adam/mu/…", "adam/nu/…" of the rest, "adam/count", "rate/count".
        """
        cfg = self.config
        layouts = hidden_matrices(specs)
        rest = [path for path in specs if path not in layouts]
        return [
            ("muon", only_paths(layouts, self._of_matrices(layouts, specs))),
            ("adam", only_paths(rest, optax.scale_by_adam(cfg.b1, cfg.b2, cfg.eps))),
        ]

    def transformation(self, specs: Mapping[str, ParamSpec], learning_rate: Schedule) -> optax.GradientTransformation:
        """Returns the links, decay and learning rate; `adam_rate` multiplies the rate scale of what Adam updates."""
        scale, matrices = self.config.adam_rate, hidden_matrices(specs)
        own = {
            path: spec if path in matrices else dataclasses.replace(spec, lr_scale=scale * spec.lr_scale)
            for path, spec in specs.items()
        }
        return super().transformation(own, learning_rate)

    def _of_matrices(
        self, layouts: Mapping[str, MatrixLayout], specs: Mapping[str, ParamSpec]
    ) -> optax.GradientTransformation:
        cfg = self.config

        def init(params: Flat) -> MuonState:
            return MuonState({path: jnp.zeros_like(param) for path, param in params.items()})

        def update(grads: Flat, state: MuonState, params: Flat | None = None) -> tuple[Flat, MuonState]:
            del params
            # A plain sum, not an average: the update is orthogonalised, so its scale doesn't matter.
            momentum = {path: cfg.momentum * state.momentum[path] + grad for path, grad in grads.items()}
            ahead = momentum
            if cfg.nesterov:
                ahead = {path: cfg.momentum * momentum[path] + grad for path, grad in grads.items()}
            parts = {
                f"{path}[{number}]": (layout, shards_of(specs[path], layout, change[where]))
                for path, change in ahead.items()
                for number, (layout, where) in enumerate(layouts[path].parts())
            }
            batches = {name: batch for name, (_, batch) in parts.items()}
            done = on_owners(batches, cfg.newton_schulz_dtype, self._orthogonal)
            sized = {name: self._size(layout) * done[name] for name, (layout, _) in parts.items()}
            updates = {}
            for path in ahead:
                layout = layouts[path]
                mine = [sized[f"{path}[{number}]"] for number in range(len(layout.parts()))]
                updates[path] = mine[0] if layout.cut is None else jnp.concatenate(mine, layout.cut[0])
            return updates, MuonState(momentum)

        return optax.GradientTransformation(init, update)

    def _orthogonal(self, matrices: Float[Array, "N I O"]) -> Float[Array, "N I O"]:
        """Returns normalised matrices orthogonalised."""
        steps = self.config.newton_schulz_steps
        if math.prod(matrices.shape) <= _AT_ONCE:
            return newton_schulz(matrices, steps)
        # A loop over batches: temporaries of all matrices at once could be larger than those of the model.
        each: Float[Array, "N I O"] = jax.lax.map(
            lambda matrix: newton_schulz(matrix[None], steps)[0],
            matrices,
            batch_size=max(1, _AT_ONCE // math.prod(matrices.shape[1:])),
        )
        return each

    def _size(self, layout: MatrixLayout) -> float:
        rows, columns = layout.fans
        if self.config.rms is None:
            scale: float = max(1.0, columns / rows) ** 0.5
        else:
            scale = self.config.rms * max(rows, columns) ** 0.5
        return scale


class MuonState(NamedTuple):
    """Running sums of gradients, by path."""

    momentum: dict[str, Any]
