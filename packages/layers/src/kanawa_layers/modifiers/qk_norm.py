"""`qk-norm`: queries and keys are normalised before the dot product (Dehghani et al. 2023, arXiv:2302.05442)."""

import kanawa as kn
from kanawa.contracts import Norm, SequenceMixer

from kanawa_layers.basic.rms_norm import RMSNorm
from kanawa_layers.modifiers.fields import set_fields


class QKNorm(kn.Modifier):
    """Applies `norm` to each head's queries and keys, as in Qwen 3; `all_heads`: to all at once, as in OLMo 2."""

    class Config(kn.Modifier.Config):
        norm: Norm.Config = RMSNorm.Config()
        all_heads: bool = False
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with both norms."""
        own = self.config
        values = {"query_norm": own.norm, "key_norm": own.norm, "norm_all_heads": own.all_heads}
        return set_fields(cfg, SequenceMixer, own.where, **values)
