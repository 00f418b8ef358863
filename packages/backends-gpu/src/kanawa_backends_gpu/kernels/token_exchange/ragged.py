"""Token exchange by XLA's ragged all-to-all on NVIDIA GPUs, over NCCL."""

from typing import ClassVar

from kanawa.kernels import ragged_exchange


class RaggedTokenExchange(ragged_exchange.RaggedTokenExchange):
    """Sends rows and no padding, over one mesh axis."""

    name: ClassVar[str] = "token_exchange.gpu.ragged"
