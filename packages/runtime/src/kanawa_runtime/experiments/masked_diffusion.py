"""`masked-diffusion`: an experiment's text model learns to fill in hidden tokens instead of to continue texts."""

from typing import Any

import kanawa as kn
from kanawa.contracts import DataSource
from kanawa.errors import ConfigError

from kanawa_runtime.data.masked_diffusion import MaskedDiffusionRows


class DiffuseText(kn.Modifier):
    """Masked diffusion of text: `kanawa train quickstart --modify masked-diffusion --run runs/diffusion`.

    Rows get tokens hidden, and the model attention to both sides and the loss (see `masked-diffusion-loss`). All else
    stays, names of parameters too, so that `--init-from` takes a model that continued texts. `mask_id` is an id that
    text never has, by default one past the tokenizer's.
    """

    class Config(kn.Modifier.Config):
        mask_id: kn.Count | None = None

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rows and loss; raises ConfigError where there is no text model to change."""
        data: Any = vars(cfg).get("data")
        if not isinstance(data, DataSource.Config) or "model" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no data and model to diffuse text with: it is no experiment"
            raise ConfigError(message)
        if isinstance(data, MaskedDiffusionRows.Config):
            rows = data.clone()
        else:
            rows = MaskedDiffusionRows.Config(source=data.clone(), sequence_length=data.sequence_length)
        rows.set(mask_id=self.config.mask_id)
        # By its name in the catalog: this package never imports the one that brings losses.
        loss = kn.component("modifiers", "masked-diffusion-loss", asker="kanawa-runtime").Config()
        changed: kn.Config = loss.set(mask_id=rows.build().mask_id).build()(cfg)
        return changed.set(data=rows)
