"""`service`: one more service for any experiment, by catalog name."""

import kanawa as kn
from kanawa.contracts import Service
from kanawa.errors import ConfigError
from kanawa.plugins import component


class AddService(kn.Modifier):
    """Appends a service to those of the run; `values` are its fields.

    `--modify 'service:name=wandb,values={"mode": "offline"}'`. One that is there already is configured anew.
    """

    class Config(kn.Modifier.Config):
        name: str = kn.REQUIRED
        values: dict[str, bool | int | float | str | None] = {}

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with the service as the last of `services`."""
        own = self.config
        kind = component("services", own.name)
        if not (isinstance(kind, type) and issubclass(kind, Service)):
            message = f"service {own.name!r} is {kind!r}, expected a subclass of kanawa.contracts.Service"
            raise ConfigError(message)
        if "services" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no services slot: only what `kanawa train` runs has services"
            raise ConfigError(message)
        others = tuple(service for service in cfg.services if not isinstance(service, kind.Config))
        cfg.set(services=(*others, kind.Config(**own.values)))
        return cfg
