"""The projections of latent attention: down to small vectors, and up to the heads."""

from typing import Any

import kanawa as kn


def add_latent_projections(layer: kn.Module, cfg: Any, *, own_latent: bool = True) -> None:
    """Declares `query` or `query_down`, `query_norm`, `query_up`; `kv_down`, `kv_norm`, `kv_up`; and `output`.

    `kv_down` gives the latent and, after it, the shared key that is rotated; `kv_up` gives each head its key without
    rotation and, after it, its value. Without `own_latent` there is no `kv_down` and no `kv_norm`.
    """
    model, heads, query_dim = cfg.input_dim, cfg.num_heads, cfg.nope_dim + cfg.rope_dim
    low_rank = cfg.query_rank is not None

    def add(
        name: str, wanted: bool, given: tuple[int, ...], made: tuple[int, ...], axes: tuple[str | None, ...]
    ) -> None:
        slot = getattr(cfg, name) if wanted else None
        layer.add_child(name, slot, input_shape=given, output_shape=made, axes=axes)

    add("query", not low_rank, (model,), (heads, query_dim), ("embed", "heads", "head_dim"))
    rank = cfg.query_rank or 0
    add("query_down", low_rank, (model,), (rank,), ("embed", None))
    layer.add_child("query_norm", cfg.query_norm if low_rank else None, input_dim=rank)
    add("query_up", low_rank, (rank,), (heads, query_dim), (None, "heads", "head_dim"))
    # The latent isn't split: every head needs all of it, so shards would have to be gathered for each projection.
    add("kv_down", own_latent, (model,), (cfg.kv_rank + cfg.rope_dim,), ("embed", None))
    layer.add_child("kv_norm", cfg.kv_norm if own_latent else None, input_dim=cfg.kv_rank)
    add("kv_up", True, (cfg.kv_rank,), (heads, cfg.nope_dim + cfg.value_dim), (None, "heads", "head_dim"))
    add("output", True, (heads, cfg.value_dim), (model,), ("heads", "head_dim", "embed"))
