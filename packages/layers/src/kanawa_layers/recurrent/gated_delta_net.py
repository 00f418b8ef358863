"""Gated delta network (Yang et al. 2024, arXiv:2412.06464), as in Qwen3-Next's linear layers."""

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.kernels.linear_recurrence import linear_recurrence
from kanawa.kernels.segments import Segments

from kanawa_layers.basic.linear import Linear, add_linear
from kanawa_layers.recurrent.delta_rule import NAMES, DeltaRule


class GatedDeltaNet(DeltaRule):
    """S_t = a_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T; out = norm(S_t^T q_t) silu(output_gate(x)).

    a = exp(-exp(log_rate) softplus(decay(x) + step_bias)), one number a head. Head h of `num_heads` uses key head
    h // (num_heads / num_key_heads). The rest is `DeltaRule`'s.
    """

    decay: Linear
    output_gate: Linear

    class Config(DeltaRule.Config):
        num_key_heads: kn.Size | None = None
        decay: Linear.Config = Linear.Config()
        output_gate: Linear.Config = Linear.Config()
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={"log_rate": "A_log", "step_bias": "dt_bias"},
            children={**NAMES, "decay": "a_proj", "output_gate": "g_proj"},
        )

        def check(self) -> list[str]:
            """Returns what is wrong with the head counts."""
            keys = self.num_key_heads or self.num_heads
            if self.num_heads % keys == 0:
                return []
            return [f"num_heads ({self.num_heads}) is not a multiple of num_key_heads ({keys})"]

    def setup(self) -> None:
        """Declares what a delta rule has, a decay a head, and the gate."""
        cfg = self.config
        self.declare(cfg.num_key_heads or cfg.num_heads, cfg.num_heads, "heads")
        add_linear(self, "decay", cfg.input_dim, cfg.num_heads, ("embed", "heads"))
        add_linear(self, "output_gate", cfg.input_dim, self.values, ("embed", "mlp"))

    def raw_step(self, x: Float[Array, "B T E"]) -> Float[Array, "B T H"]:
        """Returns `decay(x)`."""
        return self.decay(x)

    def gate(self, x: Float[Array, "B T E"]) -> Float[Array, "B T HV"]:
        """Returns silu(output_gate(x))."""
        return jax.nn.silu(self.output_gate(x))

    def recur(
        self,
        heads: dict[str, jax.Array],
        step: Float[Array, "B T H"],
        beta: Float[Array, "B T H"],
        state: Float[Array, "B H K V"] | None,
        segments: Segments | None,
        segment_ids: jax.Array | None,
    ) -> tuple[Float[Array, "B T H V"], Float[Array, "B H K V"]]:
        """Returns what each token reads, and the state after the last one."""
        del segments
        return linear_recurrence(
            heads["query"],
            heads["key"],
            heads["value"],
            log_decay=-jnp.exp(self.param("log_rate", jnp.float32))[None, None] * step,
            beta=beta,
            initial_state=state,
            segment_ids=segment_ids,
            chunk_length=self.config.chunk_length,
        )
