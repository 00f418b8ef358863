"""Policies by name, one function each: entry points of the group `kanawa.remat`. A stranger's policy is one more."""

from kanawa_parallel.remat.policies import OffloadNames, SaveNames

#: What a layer of attention and gated feed-forward computes by matmuls, queries and keys after they were turned, and
#: what a fused attention needs for its gradient: with these saved, only elementwise work is done again.
PROJECTIONS = (
    *("query", "key", "value", "attention_out", "attention_residuals", "attention_projection"),
    *("feed_forward_gate", "feed_forward_up"),
)


def save_qkv_and_output() -> SaveNames.Config:
    """Keeps query, key, value and the attention's projection."""
    return SaveNames.Config()


def save_projections() -> SaveNames.Config:
    """Keeps what matmuls and attention computed: only elementwise work is done again."""
    return SaveNames.Config(save=PROJECTIONS)


def save_attention_and_gate() -> SaveNames.Config:
    """Keeps the same without the feed-forward's second projection, for models where that is too much."""
    # As large as the gate's result, and a single matmul of the norm's output away.
    return SaveNames.Config(save=tuple(name for name in PROJECTIONS if name != "feed_forward_up"))


def save_qkv_offload_input() -> OffloadNames.Config:
    """Keeps query, key and value, and sends each layer's input to host memory."""
    return OffloadNames.Config(save=("query", "key", "value"), offload=("layer_input",))


def offload_input() -> OffloadNames.Config:
    """Sends each layer's input to host memory and recomputes the rest: the least that devices can hold."""
    return OffloadNames.Config(offload=("layer_input",))


def offload_qkv_and_output() -> OffloadNames.Config:
    """Sends query, key, value and the attention's projection to host memory."""
    return OffloadNames.Config()


def offload_qkv_and_input() -> OffloadNames.Config:
    """Sends query, key, value and each layer's input to host memory."""
    return OffloadNames.Config(offload=("query", "key", "value", "layer_input"))
