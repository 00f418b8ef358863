"""A run's key figures for a machine to read: what the page shows first, unrounded."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kanawa_runtime.report import goodput
from kanawa_runtime.report.curves import BASELINE
from kanawa_runtime.report.resources import model_flops_utilization
from kanawa_runtime.report.run_data import RunData, field_value, load_run
from kanawa_runtime.report.sections import recent_reward


def run_figures(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Returns an object a run; a figure that was not recorded is None. Keys are added, never renamed."""
    return [_figures(load_run(Path(run))) for run in runs]


def _figures(run: RunData) -> dict[str, Any]:
    last = max(run.steps, default=0)
    evaluation, program, memory = run.last("eval"), run.last("program"), run.last("memory")
    seconds = run.typical_step_seconds()
    rates = sorted(rate for _, rate in run.throughput())
    git = run.last("run_started").get("git")
    known = goodput.drawn(run)
    figures = {
        "run": str(run.path),
        "outcome": run.last("run_ended").get("outcome"),
        "step": last,
        "total_steps": run.last("run_started").get("total_steps"),
        "attempts": len({record.get("attempt") for record in run.events}),
        "loss": field_value(run.steps.get(last, {}), "loss"),
        "reward": recent_reward(run),
        "eval_step": field_value(evaluation, "step"),
        "eval_tokens": field_value(evaluation, "tokens"),
        "eval_loss": field_value(evaluation, "loss"),
        "eval_nats_per_byte": field_value(evaluation, "nats_per_byte"),
        "trigram_nats_per_byte": next((value for _, value in reversed(run.curve(BASELINE, "eval"))), None),
        # Of each step on its own, not a running total; a step that was repeated after a restart counts once.
        "tokens": sum(value for _, value in run.curve("tokens")),
        "tokens_per_second": rates[len(rates) // 2] if rates else None,
        "step_seconds": seconds,
        "seconds_by": dict(known[0].seconds) if known else {},
        "parameters": field_value(program, "parameters"),
        "model_flops_per_step": field_value(program, "model_flops_per_step"),
        "mfu": model_flops_utilization(run),
        "memory_per_device_bytes": program.get("memory_per_device_bytes"),
        "device_peak_bytes": field_value(memory, "device_peak_bytes"),
        "process_peak_bytes": field_value(memory, "process_peak_bytes"),
        "command": run.last("run_started").get("command"),
        "commit": git.get("commit") if isinstance(git, dict) else None,
        "plugins": run.environment.get("plugins") or {},
        **goodput.figures(run),
    }
    # As in the event log: JSON has no word for a loss that isn't finite.
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}
