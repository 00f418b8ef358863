"""What compiled steps reach on NVIDIA GPUs, fitted on published ones by `benchmarks/plan_calibration`.

Two figures are fitted, over Hopper and Blackwell together, since each is a share of the device's own: of peak FLOP/s,
and of the network between hosts. The rest is what NVIDIA's libraries are known to reach.
"""

from dataclasses import replace

from kanawa.plugins import Calibration, FittedStep

_AXLEARN = "AXLearn (MLSys 2026), tables of end-to-end training"
_DGXC = "NVIDIA/dgxc-benchmarking v25.02, maxtext/README_70b.md"
_RECIPES = "AI-Hypercomputer/gpu-recipes d57d222, training/a3mega/llama-2-7b/maxtext-pretraining-gke/README.md"

#: What quick plans reach; `benchmarks/plan_calibration/quick_shares.py` judges it by published steps, and refits it.
_QUICK = Calibration(
    compute_share=0.75,
    # Of Triton's grouped matmul as its inner width grows: four fifths of what cuBLAS reaches.
    kernel_shares={"attention": 0.35, "grouped_matmul": 0.6},
    memory_share=0.85,
    fused_share=0.4,
    quantising_share=0.29,
    link_share=0.8,
    network_share=0.7,
    waited_share=0.5,
    hidden_cost=0.3,
)
_QUICK_BLACKWELL = replace(
    _QUICK,
    compute_share=0.56,
    kernel_shares={"attention": 0.42, "grouped_matmul": 0.45},
    fused_share=0.65,
    narrow_shares={"float8": 1.2, "float4": 1.2},
)
QUICK = {
    **dict.fromkeys(("h100", "h200"), _QUICK),
    **dict.fromkeys(
        ("a100", "a100_40gb"), replace(_QUICK, compute_share=0.71, fused_share=0.86, waited_share=1.0, hidden_cost=0.1)
    ),
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), _QUICK_BLACKWELL),
    **dict.fromkeys(("mi300x", "mi325x", "mi355x"), _QUICK_BLACKWELL),
}

HOPPER_AND_BLACKWELL = Calibration(
    compiler="jaxlib 0.11.2",
    devices=("h100", "h200", "b200"),
    compute_share=0.775,
    # cuDNN's causal attention, forward and backward, by the pairs that its mask leaves; Triton's grouped matmul.
    kernel_shares={"attention": 0.5, "grouped_matmul": 0.4},
    memory_share=0.85,
    # Rings of NCCL; the network's share also holds what several rings lose on one adapter.
    link_share=0.8,
    network_share=0.517,
    # A ring's kernels hold a sixth of the multiprocessors, and take memory bandwidth from what runs beside them.
    hidden_cost=0.3,
    launch_seconds=4e-6,
    traced=QUICK,
    # Llama 2 70B on h100-512 (AXLearn, 9.2 s) was left out of the fit, and takes 1.2 times its plan: nothing published
    # says how it was spread or what was recomputed. MaxText's step of the same model on twice as many is 1 % off.
    interval=(0.87, 1.21),
    steps=(
        FittedStep("Llama 2 7B, fsdp 8 x data 32", "h100-256", 1.4, 1.508, 1.543, _AXLEARN),
        FittedStep("Llama 2 7B, fsdp 8 x data 32, matmuls saved", "h100-256", 1.5, 1.42, 1.401, _RECIPES),
        FittedStep(
            "Llama 3 70B, fsdp 128 x data 8, queries, keys and values saved",
            "h100-1024",
            15.603,
            15.78,
            15.86,
            _DGXC,
            0.0005,
        ),
        FittedStep("Qwen3 30B-A3B, fsdp 16 x data 32", "b200-512", 4.31, 4.285, 4.218, _AXLEARN, 0.005),
    ),
    uncalibrated=("tensor and pipeline parallelism", "expert parallelism", "dense models on Blackwell"),
)

#: No step of theirs was fitted: what the others reach, less surely.
KIN = replace(
    HOPPER_AND_BLACKWELL,
    devices=("a100", "a100_40gb", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x"),
    steps=(),
    interval=(0.75, 1.4),
    uncalibrated=("all of it",),
)

CALIBRATIONS = (HOPPER_AND_BLACKWELL, KIN)
