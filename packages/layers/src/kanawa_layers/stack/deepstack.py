"""DeepStack: features of pictures are added to the stream after the first layers (Meng et al., arXiv:2406.04334)."""

from typing import Any

import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import Sequences
from kanawa.errors import ModuleError

from kanawa_layers.stack.repeated import RepeatedStack

_LAYER = "layer"


class DeepStack(RepeatedStack):
    """A RepeatedStack that adds channels of `Sequences.embeddings` past the stream's width, a width after each layer.

    Layer l adds the l-th width of them, counted from 0, where `is_embedded`. Without embeddings it is a RepeatedStack.
    """

    class Config(RepeatedStack.Config):
        pass

    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last residual stream and the caches; raises ModuleError for more features than layers."""
        if sequences.embeddings is None or sequences.is_embedded is None:
            return super().forward(x, sequences, caches)
        cfg, width = self.config, x.shape[-1]
        early, rest = divmod(sequences.embeddings.shape[-1] - width, width)
        if rest or early > cfg.num_layers:
            message = (
                f"{self.path}: embeddings have {sequences.embeddings.shape[-1]} channels, expected {width} and as many "
                f"for each of up to {cfg.num_layers} layers"
            )
            raise ModuleError(message)
        features = sequences.embeddings[..., width:].reshape(*x.shape[:2], early, width)
        features = jnp.where(sequences.is_embedded[..., None, None], features, 0).astype(x.dtype)
        # Layers read what they need of `sequences`; a scan carries none of the wide embeddings along.
        sequences = sequences._replace(embeddings=None, is_embedded=None)
        extended: list[Any] = []

        def body(carry: Float[Array, "B T E"], added: Any) -> tuple[Float[Array, "B T E"], None]:
            cache = None if caches is None else caches[len(extended)]
            y, cache = self.layer(self.tag("layer_input", carry), sequences, cache)
            extended.append(cache)
            return y if added is None else y + added, None

        remat = False if self.remat is None or caches is not None else self.remat.policy()
        options: dict[str, Any] = {"unrolled": caches is not None or not cfg.scan, "remat": remat}
        if early:
            x, _ = kn.scan(body, x, jnp.moveaxis(features, 2, 0), over=_LAYER, length=early, **options)
        if early < cfg.num_layers:
            x, _ = kn.scan(body, x, over=_LAYER, start=early, length=cfg.num_layers - early, **options)
        return x, None if caches is None else tuple(extended)
