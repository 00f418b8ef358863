"""Recommended XLA options per TPU and purpose, for `lowered.compile(compiler_options=…)`, and traits of programs.

Every option here has been compiled with the libtpu versions that the README names. Core
leaves out what another version refuses, and says so.
"""

from typing import Any

from kanawa.plugins import DeviceSpec, ProgramTraits, Purpose
from kanawa.plugins.discovery import release_of

from kanawa_backends_tpu.mesh_rules import MEDIUM


def program_traits(device: DeviceSpec, purpose: Purpose, parameters: int, devices: int) -> ProgramTraits:
    """Returns what training a model that is spread over several devices needs; nothing for any other program.

    The compiler would fuse norms and activations into every matmul that reads them, and compute them once a tile. It
    may carry the residual stream transposed through a loop over layers, because one matmul prefers it so. Smaller
    models were not measured.
    """
    del device
    if purpose != "train" or parameters < MEDIUM or devices == 1:
        return ProgramTraits()
    return ProgramTraits(materialized_inputs=True, row_major_stream=True)


# Overlap collectives with compute: start early, finish late.
_OVERLAP: dict[str, Any] = {
    "xla_tpu_enable_latency_hiding_scheduler": True,
    "xla_enable_async_all_gather": True,
    "xla_enable_async_collective_permute": True,
    "xla_tpu_overlap_compute_collective_tc": True,
}
# Gathers that run inside a matmul. On v5p they halve the communication that nothing hides; but
# libtpu 0.0.48 refuses whole programs with them on all but v5e, and an empty program doesn't show it.
_FUSED_GATHERS: dict[str, Any] = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
}
_FUSED_GATHERS_REFUSED = (0, 0, 48)
# What came in their place on v5p: its SparseCores gather and scatter while the TensorCores multiply. Without them every
# gather of a weight stands still: 0.17 s of a 7B step. The form for the torus dimensions that a group spans must be on
# as well. Compiled, never run on the chip.
_SPARSE_CORE_COLLECTIVES: dict[str, Any] = {
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": True,
}
# Gradient sums between slices, one by one while backward still runs.
_BETWEEN_SLICES: dict[str, Any] = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
}
# Megacore chips: a matmul fused over both cores must not take a gather along.
_MEGACORE: dict[str, Any] = {"xla_tpu_megacore_fusion_allow_ags": False}
# On-chip memory (VMEM) that one fusion may use. The compiler's own 16 MiB makes for small tiles: 64 MiB on v5p take a
# 7B step's matmuls from 81 % of the matrix units' peak to 98 %, by the compiler's count (32 MiB: 95 %). VMEM is
# 128 MiB on v6e, 64 MiB a core on v5p and v7x.
_SCOPED_VMEM_KIB = {"v5p": 65536, "v6e": 98304, "v7x": 61440, "tpu7x": 61440}


def compiler_options(device: DeviceSpec, purpose: str) -> dict[str, Any]:
    """Returns the options for `device`; `purpose` is "train", "prefill" or "decode"."""
    options: dict[str, Any] = {}
    if purpose == "train":
        options |= _OVERLAP | _BETWEEN_SLICES
        if device.name in ("v4", "v5p"):
            options |= _MEGACORE
        # Without libtpu the options are for one to come: they are only shown.
        libtpu = release_of("libtpu") or _FUSED_GATHERS_REFUSED
        if device.name == "v5e" or (device.name == "v5p" and libtpu < _FUSED_GATHERS_REFUSED):
            options |= _FUSED_GATHERS
        elif device.name == "v5p":
            options |= _SPARSE_CORE_COLLECTIVES
    else:
        options["xla_tpu_enable_latency_hiding_scheduler"] = True
    if device.name in _SCOPED_VMEM_KIB:
        options["xla_tpu_scoped_vmem_limit_kib"] = _SCOPED_VMEM_KIB[device.name]
    return options
