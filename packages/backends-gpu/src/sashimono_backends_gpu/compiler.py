"""Recommended XLA options per GPU purpose, for `lowered.compile(compiler_options=…)`.

Every option here has been compiled with the versions that the README names. `checked` says which
ones another version accepts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sashimono.plugins import DeviceSpec

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
        return _SCHEDULE | _COMBINE | (_PIPELINE if _jaxlib() < _WITHOUT_PIPELINE else {})
    return dict(_SCHEDULE)


def _jaxlib() -> tuple[int, ...]:
    """Returns major and minor version of jaxlib, read from its metadata."""
    return tuple(int(part) for part in version("jaxlib").split(".")[:2])


@dataclass(frozen=True)
class Checked:
    """The options that a compiler takes, and why it refuses the others."""

    accepted: dict[str, Any]
    refused: dict[str, str]


def checked(options: Mapping[str, Any], compile_with: Callable[[dict[str, Any]], object]) -> Checked:
    """Returns which options `compile_with` accepts: it compiles some small program with the
    options it is given.

    All at once first; only if that fails, one by one. A failure that isn't about options raises
    as it is.
    """
    from jax.errors import JaxRuntimeError

    if _reason(options, compile_with, JaxRuntimeError) is None:
        return Checked(dict(options), {})
    compile_with({})
    reasons = {name: _reason({name: value}, compile_with, JaxRuntimeError) for name, value in options.items()}
    return Checked(
        {name: value for name, value in options.items() if reasons[name] is None},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def _reason(
    options: Mapping[str, Any],
    compile_with: Callable[[dict[str, Any]], object],
    error: type[Exception],
) -> str | None:
    try:
        compile_with(dict(options))
    except error as failure:
        return str(failure).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
    return None
