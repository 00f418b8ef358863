"""`attention-bias`: the projections of attention get biases."""

from typing import Any

import kanawa as kn
from kanawa.contracts import SequenceMixer
from kanawa.errors import ConfigError

# Of latent attention the projections down alone, as in DeepSeek: a bias in kv_up could not be absorbed into queries.
_INPUTS = ("query", "key", "value", "qkv", "query_down", "kv_down")


class AttentionBias(kn.Modifier):
    """Sets the biases of the projections into attention (`inputs`, as in Qwen 2) and out of it (`output`, gpt-oss)."""

    class Config(kn.Modifier.Config):
        inputs: bool = True
        output: bool = False
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the biases set; raises ConfigError where no attention has such projections."""
        wanted = {**dict.fromkeys(_INPUTS, self.config.inputs), "output": self.config.output}
        reached: list[str] = []

        def edit(node: Any) -> None:
            for name, bias in wanted.items():
                projection = getattr(node, name, None)
                if isinstance(projection, kn.Config) and "bias" in projection.fields():
                    projection.set(bias=bias)
                    reached.append(name)

        kn.replace(cfg, target=SequenceMixer, edit=edit, where=self.config.where)
        if not reached:
            message = f"no attention under {self.config.where!r} has a projection named {', '.join(wanted)} with a bias"
            raise ConfigError(message)
        return cfg
