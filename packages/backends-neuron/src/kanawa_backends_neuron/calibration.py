"""What estimated steps reach on Trainium, fitted on published ones.

No compiler for the chips is public, so the times are those of `plan --quick`: the share also holds what the compiler of
Neuron does better or worse. Attention and norms are the kernels of this package, as they were fused in the published
runs: matmuls at the same share, no traffic of scores.
"""

from kanawa.plugins import Calibration, FittedStep

_AXLEARN = "AXLearn (MLSys 2026), tables of end-to-end training"
_BENCHMARKS = "aws-neuron/aws-neuron-sdk 81ce03a, about-neuron/benchmarks/trn1/training_data_decoder.csv"

CALIBRATIONS = (
    Calibration(
        compiler="jaxlib 0.10.2",
        devices=("trn2",),
        compute_share=0.286,
        interval=(0.7, 1.3),
        steps=(
            FittedStep("Llama 2 7B, fsdp 1024 x tensor 4", "trn2-1024", 1.2, 1.17, 1.15, _AXLEARN),
            FittedStep("Llama 2 70B, fsdp 1024 x tensor 4", "trn2-1024", 11.2, 11.5, 11.7, _AXLEARN),
        ),
        uncalibrated=("memory", "NeuronLink", "network"),
    ),
    Calibration(
        compiler="jaxlib 0.10.2",
        devices=("trn1",),
        compute_share=0.44,
        interval=(0.7, 1.4),
        steps=(FittedStep("Llama 3.1 8B, tensor 32 x data 32", "trn1-512", 21.36, 21.17, 28.1, _BENCHMARKS, 0.005),),
        uncalibrated=("memory", "NeuronLink", "network", "pipelines"),
    ),
    # No step of theirs was fitted: what trn2 reaches, less surely.
    Calibration(
        compiler="jaxlib 0.10.2",
        devices=("trn3",),
        compute_share=0.286,
        interval=(0.6, 1.5),
        uncalibrated=("all of it",),
    ),
)
