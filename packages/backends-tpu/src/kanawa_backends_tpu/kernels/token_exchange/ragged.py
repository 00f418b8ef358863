"""Token exchange by XLA's ragged all-to-all on TPUs."""

from typing import ClassVar

from kanawa.kernels.token_exchange import ragged


class RaggedTokenExchange(ragged.RaggedTokenExchange):
    """Sends rows and no padding, over one mesh axis."""

    name: ClassVar[str] = "token_exchange.tpu.ragged"
    platforms: ClassVar[tuple[str, ...]] = ("tpu",)
