"""`attention-gate`: what attention returns passes a sigmoid gate."""

import sashimono as sm

from sashimono_layers.attention.output_gate import ElementwiseGate, OutputGate
from sashimono_layers.modifiers.attention_fields import set_on_attention


class AttentionGate(sm.Modifier):
    """Puts `gate` before the output projection of every attention that can have one."""

    class Config(sm.Modifier.Config):
        gate: OutputGate.Config = ElementwiseGate.Config()
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with gates."""
        return set_on_attention(cfg, self.config.where, gate=self.config.gate)
