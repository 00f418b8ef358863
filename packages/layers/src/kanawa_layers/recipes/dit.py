"""DiT (Peebles and Xie 2022, arXiv:2212.09748, table 1): latents of ImageNet's pictures, by label."""

from functools import partial


from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.attention.masks import Bidirectional
from kanawa_layers.basic.linear import Linear
from kanawa_layers.basic.norms import UnitLayerNorm
from kanawa_layers.basic.patches import PatchEmbedding
from kanawa_layers.diffusion.blocks import ModulatedBlock
from kanawa_layers.diffusion.ddpm import DDPM
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.diffusion.objective import Objective
from kanawa_layers.feedforward.activations import gelu_tanh
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.models.diffusion import DiffusionModel
from kanawa_layers.models.dit import DiT
from kanawa_layers.positions.biases import NoPositions
from kanawa_layers.stack.repeated import RepeatedStack


def dit(
    *,
    num_layers: int,
    input_dim: int,
    num_heads: int,
    patch_size: int = 2,
    image_size: int = 32,
    num_channels: int = 4,
    num_labels: int = 1000,
    hidden_dim: int | None = None,
    norm_eps: float = 1e-6,
    is_latent: bool = True,
    learns_variance: bool = False,
    objective: Objective.Config | None = None,
) -> DiffusionModel.Config:
    """Returns a DiT of any size; `image_size` is that of the latents, an eighth of the pictures'."""
    linear = Linear.Config(bias=True)
    layer = ModulatedBlock.Config(
        attention=GroupedQueryAttention.Config(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            mask=Bidirectional.Config(),
            query=linear,
            key=linear,
            value=linear,
            output=linear,
            positions=NoPositions.Config(),
        ),
        feed_forward=PlainFeedForward.Config(
            hidden_dim=hidden_dim or 4 * input_dim, activation=gelu_tanh, up=linear, down=linear
        ),
        attention_norm=UnitLayerNorm.Config(),
        feed_forward_norm=UnitLayerNorm.Config(eps=norm_eps),
    )
    network = DiT.Config(
        input_dim=input_dim,
        image_size=image_size,
        num_labels=num_labels,
        is_latent=is_latent,
        learns_variance=learns_variance,
        patches=PatchEmbedding.Config(patch_size=patch_size, num_channels=num_channels),
        stack=RepeatedStack.Config(num_layers=num_layers, layer=layer),
    )
    return DiffusionModel.Config(denoiser=network, objective=objective or DDPM.Config())


#: DiT-XL/2, 675 million parameters; S, B and L with other patches as in table 1.
dit_xl_2 = partial(dit, num_layers=28, input_dim=1152, num_heads=16)
dit_tiny = partial(
    dit,
    num_layers=4,
    input_dim=128,
    num_heads=4,
    image_size=16,
    num_channels=1,
    num_labels=10,
    is_latent=False,
    objective=FlowMatching.Config(),
)
