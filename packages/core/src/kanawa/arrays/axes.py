"""The legend of logical axes: layers name these, strategies map them to mesh axes, no other code knows meshes."""

#: name -> what the axis counts. One legend for parameters, activations, caches and docs.
AXES: dict[str, str] = {
    "batch": "rows of a batch",
    "length": "positions of the queries in a row",
    "kv_length": "positions of keys and values in a row or cache",
    "embed": "the model (residual) width",
    "mlp": "the hidden width of a feed-forward",
    "heads": "query heads",
    "kv_heads": "key and value heads",
    "head_dim": "the width of one head",
    "vocab": "token ids",
    "experts": "experts of a mixture",
    "expert_tokens": "token rows after dispatch to experts",
    "adapters": "slots of an adapter pool",
    "pages": "pages of a paged cache",
    "layers": "layers of a stack, stacked in one array",
    "stage": "pipeline stages",
    "norm": "the width a norm's scale spans; small, normally replicated",
    "conv": "taps of a convolution",
    "state": "the state width of a recurrence",
}

#: One entry per array dimension: a legend name, or None for a dimension that is never sharded.
LogicalAxes = tuple[str | None, ...]

#: Mesh axes in the order that puts the slowest links first.
MESH_AXES = ("stage", "replica", "data", "fsdp", "expert", "context", "tensor")

#: Of these, what splits parameters for storage alone: each is gathered before it is used, or moved to its stage.
STORAGE_AXES = frozenset({"fsdp", "stage"})
