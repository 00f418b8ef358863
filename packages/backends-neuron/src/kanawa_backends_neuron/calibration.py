"""What planned steps reach on Trainium, fitted on published ones.

No compiler for the chips is public. The times are of XLA's partitioned program with fusions as `plan` models them, all
communication exposed, so the share also holds what Neuron's compiler does better or worse. Attention and norms are the
package's kernels, as they were fused in the published runs: matmuls at the same share, no traffic of scores.
"""

from kanawa.plugins import Calibration, FittedStep

_AXLEARN = "AXLearn (MLSys 2026), tables of end-to-end training"

CALIBRATIONS = (
    Calibration(
        compiler="jaxlib 0.10.2",
        devices=("trn2",),
        compute_share=0.327,
        interval=(0.7, 1.3),
        steps=(
            FittedStep(
                workload="Llama 2 7B, fsdp 1024 x tensor 4",
                target="trn2-1024",
                seconds=1.2,
                rounding_seconds=0.05,
                planned_seconds=1.18,
                held_out_seconds=1.16,
                source=_AXLEARN,
            ),
            FittedStep(
                workload="Llama 2 70B, fsdp 1024 x tensor 4",
                target="trn2-1024",
                seconds=11.2,
                rounding_seconds=0.05,
                planned_seconds=11.4,
                held_out_seconds=11.6,
                source=_AXLEARN,
            ),
        ),
        uncalibrated=("memory", "NeuronLink", "network"),
    ),
)
