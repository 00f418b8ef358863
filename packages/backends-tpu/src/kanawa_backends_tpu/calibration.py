"""What compiled steps reach on TPUs, fitted on published ones by `benchmarks/plan_calibration`.

One figure a generation is fitted, the factor on the compiler's own estimates; what published steps can't separate is
assumed for all: links reach 80 % of their figures. Kernels take the cycles of their own schedules.
"""

from dataclasses import replace

from kanawa.plugins import Calibration, FittedStep

_AXLEARN = "AXLearn (MLSys 2026), tables of end-to-end training"
_MAXTEXT = "AI-Hypercomputer/maxtext 76bd53b0f, MaxText/configs/v5e/README.md; seconds from the MFU by its own formula"
_RECIPES = "AI-Hypercomputer/tpu-recipes c8cfe2f, training/trillium/Llama3.1-70B-MaxText/v6e-128/README.md"

_ASSUMED = Calibration(
    compiler="libtpu 0.0.52",
    # Of what has neither an estimate nor a schedule: a kernel that libtpu can't compile here, and that isn't recorded.
    compute_share=0.55,
    memory_share=0.85,
    link_share=0.8,
    network_share=0.5,
)

#: What quick plans reach; `benchmarks/plan_calibration/quick_shares.py` judges it by published steps, and refits it.
_QUICK = replace(
    _ASSUMED,
    kernel_shares={"attention": 0.5},
    memory_share=0.85,
    # Rings in both directions, and matmuls in parts beside them.
    waited_share=0.21,
    quantising_share=0.41,
    # By four compiled steps of Llama 3.1 8B on v6e-8 (docs/results/2026-11-28-placement.md): the compiler transposes
    # heads, relays the stack, and copies what it sends away.
    kept_passes={"heads": 22.0, "heads_offloaded": 45.0, "offloaded": 6.0},
    network_latency_seconds=4e-4,
    # By five published steps of four mixtures (docs/results/plan-accuracy.md).
    row_cycles=5.5,
)
#: Published programs of v7x gather from larger tables on the SparseCores; libtpu 0.0.52 leaves one of 0.7 MB alone.
_ON_CHIP = 8 * 2**20
QUICK = {
    "v5e": replace(_QUICK, compute_share=0.86),
    "v5p": replace(_QUICK, compute_share=0.87),
    "v6e": replace(_QUICK, compute_share=0.71, estimate_factor=0.79, fused_share=0.55, hidden_cost=0.55),
    **dict.fromkeys(("v7x", "tpu7x"), replace(_QUICK, compute_share=0.81, hidden_cost=0.2, row_table_bytes=_ON_CHIP)),
}

V5E = replace(
    _ASSUMED,
    traced=QUICK,
    devices=("v5e",),
    estimate_factor=0.928,
    interval=(0.80, 1.25),
    steps=(
        FittedStep(
            "32B of width 10,240, ungated, fsdp 256, full remat", "v5e-256", 12.3463, 12.84, 13.76, _MAXTEXT, 0.001
        ),
    ),
    uncalibrated=("ICI apart from compute", "DCN", "tensor parallelism", "mixtures", "offloading"),
)

V5P = replace(
    _ASSUMED,
    traced=QUICK,
    devices=("v5p",),
    estimate_factor=1.042,
    interval=(0.86, 1.17),
    steps=(
        FittedStep("Llama 2 7B, fsdp 64 x data 4", "v5p-512", 2.5, 2.411, 2.349, _AXLEARN),
        # Its plan is of three of 80 layers, whose loops were counted as 80.
        FittedStep("Llama 2 70B, fsdp 256 x data 2", "v5p-1024", 11.6, 11.78, 11.88, _AXLEARN),
    ),
    uncalibrated=("ICI apart from compute", "DCN", "tensor parallelism", "mixtures", "offloading"),
)

V6E = replace(
    _ASSUMED,
    traced=QUICK,
    devices=("v6e",),
    estimate_factor=0.901,
    interval=(0.74, 1.35),
    steps=(
        FittedStep(
            "Llama 3.1 70B, fsdp 128, layer inputs and queries, keys and values offloaded",
            "v6e-128",
            34.786,
            37.18,
            40.28,
            _RECIPES,
            0.0005,
        ),
    ),
    uncalibrated=("ICI apart from compute", "DCN", "tensor parallelism", "mixtures"),
)

V7X = replace(
    _ASSUMED,
    traced=QUICK,
    devices=("v7x", "tpu7x"),
    estimate_factor=0.997,
    interval=(0.81, 1.23),
    steps=(
        FittedStep(
            "Llama 3.1 70B, fsdp 512, layer inputs, queries, keys, values and attention saved",
            "tpu7x-512",
            12.27,
            12.29,
            12.32,
            "AI-Hypercomputer/tpu-recipes c8cfe2f, training/ironwood/README.md",
            0.005,
        ),
    ),
    uncalibrated=("ICI apart from compute", "DCN", "context parallelism", "mixtures", "offloading"),
)

#: No step of v4 was fitted: what the others reach, less surely.
KIN = replace(_ASSUMED, devices=("v4",), interval=(0.75, 1.4), uncalibrated=("all of it",))

CALIBRATIONS = (V5E, V5P, V6E, V7X, KIN)
