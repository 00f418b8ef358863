"""What a model in training would write: the trainer asks a catalogued sampler, if the experiment has a prompt."""

from typing import Any, Protocol

from kanawa.contracts import DataSource, Environment
from kanawa.plugins import component

#: The sampler of this package; it lies above training, and is found in the catalog.
_NAME = "kanawa-runtime:generate"


class Sampler(Protocol):
    """Writes samples of one model."""

    def sample(self, params: Any, state: Any) -> dict[str, str]:
        """Returns the `prompt` and the `text` after it, or an `error`; never raises."""


def sampler_of(prompt: str, model: Any, source: DataSource, environment: Environment) -> Sampler | None:
    """Returns the sampler of an experiment; None without a prompt, and for what writes no text."""
    if not prompt:
        return None
    sampler: Sampler | None = component("samplers", _NAME)(prompt, model, source, environment)
    return sampler
