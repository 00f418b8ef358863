"""`norm`: every norm becomes another kind, named by its place in the catalog."""

import sashimono as sm
from sashimono.contracts import Norm
from sashimono.errors import UsageError


class NormKind(sm.Modifier):
    """Replaces norms by the layer `kind`, such as layer-norm; eps, where it was set, carries over.

    Raises UsageError where `kind` isn't a norm.
    """

    class Config(sm.Modifier.Config):
        kind: str = sm.REQUIRED
        where: str = "**"

    def __call__(self, cfg: sm.Config) -> sm.Config:
        """Returns `cfg` with every norm under `where` replaced."""
        own = self.config
        layer = sm.component("layers", own.kind)
        if not (isinstance(layer, type) and issubclass(layer, Norm)):
            message = f"norm: {own.kind!r} is {layer!r}, which is no norm; name one, such as layer-norm or rms-norm"
            raise UsageError(message)
        new = layer.Config()
        new.set(foreign=new.foreign)
        sm.replace(cfg, target=Norm, new=new, where=own.where)
        return cfg
