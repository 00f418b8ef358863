"""`norm`: every norm becomes another kind, named by its place in the catalog."""

import kanawa as kn
from kanawa.contracts import Norm
from kanawa.errors import UsageError


class NormKind(kn.Modifier):
    """Replaces norms by the layer `kind`, such as layer-norm; eps, where it was set, carries over.

    Raises UsageError where `kind` isn't a norm.
    """

    class Config(kn.Modifier.Config):
        kind: str = kn.REQUIRED
        where: str = "**"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with every norm under `where` replaced."""
        own = self.config
        layer = kn.component("layers", own.kind)
        if not (isinstance(layer, type) and issubclass(layer, Norm)):
            message = f"norm: {own.kind!r} is {layer!r}, which is no norm; name one, such as layer-norm or rms-norm"
            raise UsageError(message)
        kn.replace(cfg, target=Norm, new=layer.Config(), where=own.where)
        return cfg
