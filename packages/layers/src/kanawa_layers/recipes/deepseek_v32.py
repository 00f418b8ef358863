"""DeepSeek-V3.2 (arXiv:2512.02556): DeepSeek-V3 whose attention is sparse, by a lightning indexer in every layer."""

from typing import Any

import kanawa as kn
from kanawa.contracts import ForeignFamily

from kanawa_layers.attention.latent import LatentAttention
from kanawa_layers.attention.sparse import LightningIndexer, SelectedDotProduct, SparseLatentAttention
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.recipes import deepseek_v3 as v3
from kanawa_layers.recipes.hf_config import Foreign


def deepseek_v32(
    *, index_heads: int = 64, index_dim: int = 128, index_top_k: int = 2048, **shape: Any
) -> DecoderLM.Config:
    """Returns DeepSeek-V3.2, by default as released; `shape` as for `deepseek_v3`."""
    return _sparse(v3.deepseek_v3(**shape), index_heads, index_dim, index_top_k)


def _sparse(cfg: DecoderLM.Config, heads: int, head_dim: int, top_k: int) -> DecoderLM.Config:
    def sparse(node: Any) -> kn.Config:
        # The indexer rotates halves, whatever the attention does, with the same frequencies.
        positions = node.positions.clone().set(interleaved=False)
        indexer = LightningIndexer.Config(
            num_heads=heads, head_dim=head_dim, rope_dim=node.rope_dim, positions=positions
        )
        return SparseLatentAttention.Config(indexer=indexer, dot_product=SelectedDotProduct.Config(top_k=top_k))

    kn.replace(cfg, target=LatentAttention, new=sparse)
    return cfg


def from_hf(config: Foreign) -> DecoderLM.Config:
    """Returns the model of a `deepseek_v32` config.json."""
    return _sparse(v3.from_hf(config), *(config[name] for name in ("index_n_heads", "index_head_dim", "index_topk")))


def to_hf(cfg: Any) -> dict[str, Any]:
    """Returns the inverse of `from_hf`."""
    attention = cfg.stack.stacks[0].layer.attention
    return {
        **v3.to_hf(cfg),
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_n_heads": attention.indexer.num_heads,
        "index_head_dim": attention.indexer.head_dim,
        "index_topk": attention.dot_product.top_k,
    }


FAMILY = ForeignFamily(from_hf, to_hf)
