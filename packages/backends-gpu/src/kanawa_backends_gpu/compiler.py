"""Recommended XLA options per GPU purpose, for `lowered.compile(compiler_options=…)`.

Every option here has been compiled with the versions that the README names. Core leaves
out what another version refuses, and says so.
"""

from typing import Any

from kanawa.plugins import DeviceSpec
from kanawa.plugins.discovery import release_of

_MIB = 2**20
_SCHEDULE: dict[str, Any] = {"xla_gpu_enable_latency_hiding_scheduler": True}
# Gathers and scatters of one scanned layer run while the next one computes. XLA lost these options
# between jaxlib 0.10.2 and 0.11.2.
_PIPELINE: dict[str, Any] = {
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
}
_WITHOUT_PIPELINE = (0, 11)
# Small collectives are joined up to these sizes: large enough for full link speed, small enough
# to overlap.
_COMBINE: dict[str, Any] = {
    "xla_gpu_all_gather_combine_threshold_bytes": 1024 * _MIB,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 32 * _MIB,
    "xla_gpu_all_reduce_combine_threshold_bytes": 128 * _MIB,
    "xla_gpu_enable_all_gather_combine_by_dim": False,
    "xla_gpu_enable_reduce_scatter_combine_by_dim": False,
}


def compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any]:
    """Returns the options for `device`; `purpose` is "train", "prefill" or "decode"."""
    del device  # No option here depends on the generation so far.
    if purpose == "train":
        return _SCHEDULE | _COMBINE | (_PIPELINE if release_of("jaxlib") < _WITHOUT_PIPELINE else {})
    return dict(_SCHEDULE)
