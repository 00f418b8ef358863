"""Feed-forward with a squared ReLU, from Primer (So et al. 2021, arXiv:2109.08668, section 3)."""

import jax
import kanawa as kn
from jaxtyping import Array, Float
from kanawa.contracts import FeedForward, Sequences


class SquaredReLU(FeedForward):
    """down(relu(up(x)) ** 2), without biases."""

    class Config(FeedForward.Config):
        # Nemotron's checkpoints have this layer under these names.
        foreign: kn.foreign.Names = kn.foreign.Names(
            tensors={
                "up": kn.foreign.Tensor(name="up_proj.weight", form=kn.foreign.Matrix.Config()),
                "down": kn.foreign.Tensor(name="down_proj.weight", form=kn.foreign.Matrix.Config()),
            }
        )

    def setup(self) -> None:
        """Declares the two matrices."""
        cfg = self.config
        self.add_param("up", (cfg.input_dim, cfg.hidden_dim), axes=("embed", "mlp"))
        self.add_param("down", (cfg.hidden_dim, cfg.input_dim), axes=("mlp", "embed"))

    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed tokens in `x`'s dtype."""
        del sequences
        hidden = jax.nn.relu(x @ self.param("up"))
        hidden = kn.constrain(hidden * hidden, ("batch", "length", "mlp"))
        return kn.constrain(hidden @ self.param("down"), ("batch", "length", "embed"))
