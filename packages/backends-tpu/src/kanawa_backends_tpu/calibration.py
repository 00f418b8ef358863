"""What compiled steps reach on TPUs, fitted on published ones by `benchmarks/plan_calibration`."""

from kanawa.plugins import Calibration, FittedStep

_AXLEARN = "AXLearn (MLSys 2026), tables of end-to-end training"

CALIBRATIONS = (
    Calibration(
        compiler="libtpu 0.0.42.1",
        devices=("v4", "v5p", "v7x", "tpu7x"),
        compute_share=0.521,
        interval=(0.85, 1.2),
        steps=(
            FittedStep(
                workload="Llama 2 7B, fsdp 64 x data 4",
                target="v5p-512",
                seconds=2.5,
                rounding_seconds=0.05,
                planned_seconds=2.50,
                held_out_seconds=2.25,
                source=_AXLEARN,
            ),
        ),
        uncalibrated=("ICI", "DCN"),
    ),
)
