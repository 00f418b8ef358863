"""What compiled steps reach on NVIDIA GPUs, fitted on published ones by `benchmarks/plan_calibration`."""

from kanawa.plugins import Calibration, FittedStep

_AXLEARN = "AXLearn (MLSys 2026), tables of end-to-end training"

CALIBRATIONS = (
    Calibration(
        compiler="jaxlib 0.10.2",
        devices=("h100", "h200"),
        compute_share=0.672,
        interval=(0.85, 1.3),
        steps=(
            FittedStep(
                workload="Llama 2 7B, fsdp 8 x data 32",
                target="h100-256",
                seconds=1.4,
                rounding_seconds=0.05,
                planned_seconds=1.40,
                held_out_seconds=1.25,
                source=_AXLEARN,
            ),
        ),
        uncalibrated=("NVLink", "network"),
    ),
)
