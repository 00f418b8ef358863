"""`attention-gate`: multiplies attention's output by a sigmoid gate."""

import kanawa as kn
from kanawa.contracts import SequenceMixer

from kanawa_layers.attention.output_gate import ElementwiseGate, OutputGate
from kanawa_layers.modifiers.fields import set_fields


class AttentionGate(kn.Modifier):
    """Puts `gate` before the output projection of every attention that can have one."""

    class Config(kn.Modifier.Config):
        gate: OutputGate.Config = ElementwiseGate.Config()
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with gates."""
        return set_fields(cfg, SequenceMixer, self.config.where, gate=self.config.gate)
