"""Linear recurrence with a matrix state: decayed outer products, with or without the delta rule.

Legend: B rows, T tokens, G groups of q and k, H heads, K key width, V value width.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from kanawa.errors import KernelError
from kanawa.kernels.bad_input import first_bad, mixed_dtypes, not_floats, not_integers, refuse_bad_input, values
from kanawa.kernels.operation import Operands, Operation, Problem, UniversalKernel, wide
from kanawa.kernels.run import run
from kanawa.kernels.segments import segments

#: (out in the dtype of v, final state fp32).
OutAndState = tuple[jax.Array, jax.Array]

#: The length stays whole on a shard: each token's state comes from the token before.
LINEAR_RECURRENCE = Operation(
    name="linear_recurrence",
    operand_axes={
        "q": ("batch", None, "kv_heads", None),
        "k": ("batch", None, "kv_heads", None),
        "v": ("batch", None, "heads", None),
        "log_decay": ("batch", None, "heads"),
        "beta": ("batch", None, "heads"),
        "initial_state": ("batch", "heads", None, None),
        "segment_ids": ("batch", None),
    },
    output_axes=(("batch", None, "heads", None), ("batch", "heads", None, None)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearRecurrenceProblem(Problem):
    """A state [key_dim, value_dim] for each row and head, written and read once a token.

    Attributes:
        num_groups: heads of q and k; head h of v uses group h // (num_heads / num_groups).
        delta: what is written is corrected by what the state already returns for the key.
        chunk_length: tokens worked on at a time; None leaves it to the kernel.
    """

    batch: int
    length: int
    num_groups: int
    num_heads: int
    key_dim: int
    value_dim: int
    dtype: str
    delta: bool = False
    has_initial_state: bool = False
    has_segments: bool = False
    chunk_length: int | None = None

    @property
    def matmul_flops(self) -> float:
        """FLOPs of writing every token into its state, or of reading every token from it."""
        return 2.0 * self.batch * self.length * self.num_heads * self.key_dim * self.value_dim

    def describe(self) -> str:
        """Returns one line, such as "bfloat16[8,4096] heads 24/1 state 128x64 delta segments"."""
        parts = [
            f"{self.dtype}[{self.batch},{self.length}] heads {self.num_heads}/{self.num_groups} "
            f"state {self.key_dim}x{self.value_dim}"
        ]
        parts += ["delta"] * self.delta + ["initial_state"] * self.has_initial_state
        parts += ["segments"] * self.has_segments
        if self.chunk_length is not None:
            parts.append(f"chunk_length={self.chunk_length}")
        return " ".join(parts)

    def localize(self, operand_shapes: Mapping[str, tuple[int, ...]]) -> "LinearRecurrenceProblem":
        """Returns the problem of one shard, whose operands have these shapes."""
        batch, _, heads, _ = operand_shapes["v"]
        groups = operand_shapes["k"][2]
        return dataclasses.replace(self, batch=batch, num_heads=heads, num_groups=groups)

    def result(self, operands: Operands) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Returns the shape of v, and the state [B, H, K, V] in fp32."""
        v, state = operands["v"], (self.batch, self.num_heads, self.key_dim, self.value_dim)
        return jax.ShapeDtypeStruct(v.shape, v.dtype), jax.ShapeDtypeStruct(state, wide(self.dtype))


class ReferenceLinearRecurrence(UniversalKernel):
    """linear_recurrence.any.reference: one token after the other, in fp32. The truth on any device."""

    name: ClassVar[str] = "linear_recurrence.any.reference"
    operation: ClassVar[str] = "linear_recurrence"
    autodiff: ClassVar[bool] = True

    def forward(self, problem: LinearRecurrenceProblem, operands: Operands) -> tuple[OutAndState, None]:
        """Returns ((out [B, T, H, V], final state [B, H, K, V]), None)."""
        p, exact = problem, wide(problem.dtype)
        repeats = p.num_heads // p.num_groups
        q, k = (jnp.repeat(operands[n].astype(exact), repeats, axis=2) for n in ("q", "k"))
        tokens = {
            "q": q,
            "k": k,
            "v": operands["v"].astype(exact),
            "decay": jnp.exp(operands["log_decay"].astype(exact)),
            "real": jnp.ones((p.batch, p.length), bool),
            "resets": jnp.zeros((p.batch, p.length), bool),
        }
        if p.delta:
            tokens["beta"] = operands["beta"].astype(exact)
        if p.has_segments:
            count, tokens["real"] = segments(operands["segment_ids"])
            # Counts, whose steps are the resets: the first token of a row never resets, having count 0.
            tokens["resets"] = jnp.diff(count, axis=1, prepend=0) > 0
        state = jnp.zeros((p.batch, p.num_heads, p.key_dim, p.value_dim), exact)
        if p.has_initial_state:
            state = operands["initial_state"].astype(exact)
        by_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens)
        state, out = jax.lax.scan(_one_token, state, by_time)
        return (jnp.moveaxis(out, 0, 1).astype(operands["v"].dtype), state), None


def _one_token(state: jax.Array, token: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns (state [B, H, K, V] after a token, what the token reads [B, H, V])."""

    def per_row(x: jax.Array) -> jax.Array:
        return x[:, None, None, None]

    decayed = jnp.where(per_row(token["resets"]), 0.0, state) * token["decay"][..., None, None]
    written = token["v"]
    if "beta" in token:
        known = jnp.einsum("bhk,bhkv->bhv", token["k"], decayed)
        written = token["beta"][..., None] * (written - known)
    after = decayed + token["k"][..., :, None] * written[..., None, :]
    after = jnp.where(per_row(token["real"]), after, state)
    out = jnp.einsum("bhk,bhkv->bhv", token["q"], after)
    return after, jnp.where(token["real"][:, None, None], out, 0.0)


def linear_recurrence(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    log_decay: jax.Array | None = None,
    beta: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    chunk_length: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns (out [B, T, H, V] in the dtype of v, final state fp32 [B, H, K, V]).

    For each row and head, with a_t = exp(log_decay_t):

        S_t = a_t S_(t-1) + k_t v_t^T                                        without beta
        S_t = a_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T          with beta, the delta rule
        out_t = S_t^T q_t

    Decays and states are fp32; products take the operands' dtype and accumulate in fp32.

    Args:
        q, k: [B, T, G, K]; head h uses group h // (H / G). Nothing is scaled here.
        v: [B, T, H, V].
        log_decay: float [B, T, H], at most 0; None for no decay.
        beta: float [B, T, H], the share of the delta that is written. Keys should then have length 1.
        initial_state: float [B, H, K, V]; None for zeros.
        segment_ids: int [B, T]. The state resets where the id changes, except before a row's first
            token, which continues the initial state. 0 is padding: it reads zeros and leaves
            the state as it is, so that the final state is that after the last token.
        chunk_length: tokens worked on at a time; None leaves it to the kernel.

    Differentiable in all floating-point operands. Raises KernelError where shapes don't fit
    together or no kernel applies. Source: arXiv:2405.21060 (decay), arXiv:2412.06464 (delta rule).
    """
    operands: dict[str, Any] = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta}
    operands |= {"initial_state": initial_state, "segment_ids": segment_ids}
    operands = {name: x for name, x in operands.items() if x is not None}
    _check(operands, chunk_length)
    batch, length, heads, value_dim = v.shape
    operands.setdefault("log_decay", jnp.zeros((batch, length, heads), jnp.float32))
    problem = LinearRecurrenceProblem(
        batch=batch,
        length=length,
        num_groups=k.shape[2],
        num_heads=heads,
        key_dim=k.shape[3],
        value_dim=value_dim,
        dtype=str(v.dtype),
        delta=beta is not None,
        has_initial_state=initial_state is not None,
        has_segments=segment_ids is not None,
        chunk_length=chunk_length,
    )
    result: tuple[jax.Array, jax.Array] = run(LINEAR_RECURRENCE, problem, operands)
    return result


def _check(operands: dict[str, Any], chunk_length: int | None) -> None:
    """Raises KernelError naming the first operand that doesn't fit."""
    k, v = operands["k"], operands["v"]
    for name, x in (("k", k), ("v", v)):
        if x.ndim != 4:
            message = f"linear_recurrence: {name} has shape {x.shape}; it must have 4 dimensions"
            raise KernelError(message)
    batch, length, heads, value_dim = v.shape
    groups, key_dim = k.shape[2:]
    wanted = {
        "q": (batch, length, groups, key_dim),
        "k": (batch, length, groups, key_dim),
        "log_decay": (batch, length, heads),
        "beta": (batch, length, heads),
        "initial_state": (batch, heads, key_dim, value_dim),
        "segment_ids": (batch, length),
    }
    for name, shape in wanted.items():
        if name in operands and operands[name].shape != shape:
            shapes = f"k {k.shape} and v {v.shape}"
            message = f"linear_recurrence: {name} has shape {operands[name].shape}; {shapes} ask for {shape}"
            raise KernelError(message)
    if heads % groups:
        message = f"linear_recurrence: {heads} heads of v are not a multiple of {groups} groups of q and k"
        raise KernelError(message)
    if length == 0 or (chunk_length is not None and chunk_length < 1):
        message = f"linear_recurrence: length {length} and chunk_length {chunk_length} must be at least 1"
        raise KernelError(message)
    broken = not_integers(operands, ("segment_ids",), "ids, 0 for padding,")
    broken += not_floats(operands, ("q", "k", "v", "log_decay", "beta", "initial_state"))
    broken += mixed_dtypes(operands, ("q", "k", "v"))
    decay = values(operands.get("log_decay"))
    if decay is not None:
        # Written so that NaN is wrong too.
        broken += first_bad("log_decay", decay, ~(decay <= 0), "a state doesn't grow: logarithms are at most 0")
    refuse_bad_input("linear_recurrence", broken)
