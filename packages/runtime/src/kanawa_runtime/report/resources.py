"""What a run is made of and what it uses: parameters by module, memory, and the share of the chips' peak."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kanawa_runtime.report.parts import card, large, per_run, section, share_bar, table
from kanawa_runtime.report.run_data import RunData, field_value

Runs = Sequence[RunData]
Names = Sequence[str]
_MIB = 2.0**20
_GIB = 2.0**30
_MOST_MODULES = 40
_FORMULA = (
    "MFU is model FLOPs a step by what all chips can do in a step's time. Model FLOPs are three times the forward "
    "pass's matmuls, attention over the keys a causal mask leaves; what is computed again doesn't count."
)


def model_flops_utilization(run: RunData) -> float | None:
    """Returns the run's MFU at its median step; None where the chips' peak, or a step's time, is not known."""
    program = run.last("program")
    flops, peak = field_value(program, "model_flops_per_step"), field_value(program, "peak_flops_per_chip")
    chips, seconds = field_value(program, "chips"), run.typical_step_seconds()
    if not flops or not peak or not chips or not seconds:
        return None
    return flops / (peak * chips * seconds)


def utilization_text(share: float) -> str:
    """Returns an MFU as a page shows it, with a remark where no device can have reached it."""
    remark = "" if share <= 1.0 else " (above 100 %: the peak on record is too low, or steps were measured wrongly)"
    return f"{share:.1%}{remark}"


def utilization(runs: Runs, names: Names) -> str:
    """The MFU, with all that it is computed from; it says what isn't known rather than guess."""
    rows: list[list[str]] = []
    programs = [run.last("program") for run in runs]
    if not any(programs):
        return ""
    rows.append(["model FLOPs a step", *(_count(program, "model_flops_per_step") for program in programs)])
    seconds = [run.typical_step_seconds() for run in runs]
    rows.append(["a step's time (median)", *("not known" if s is None else f"{s:.4g} s" for s in seconds)])
    achieved = [
        None if s is None or not field_value(p, "model_flops_per_step") else p["model_flops_per_step"] / s
        for p, s in zip(programs, seconds, strict=True)
    ]
    rows.append(["model FLOP/s", *("not known" if rate is None else large(rate) for rate in achieved)])
    rows.append(["chips", *(_count(program, "chips") for program in programs)])
    rows.append(["a chip's peak FLOP/s", *(_peak(program) for program in programs)])
    shares = [model_flops_utilization(run) for run in runs]
    rows.append(["MFU", *("not known" if share is None else utilization_text(share) for share in shares)])
    head = ["", *(names if len(runs) > 1 else [""])]
    note = f'<p class="note">{escape(_FORMULA)}</p>'
    return section("Use of the chips", card(note + table(head, rows)))


def _peak(program: Mapping[str, Any]) -> str:
    peak = field_value(program, "peak_flops_per_chip")
    kind, dtype = str(program.get("device_kind", "")), str(program.get("peak_flops_dtype", ""))
    if peak is None:
        return f"not known for {kind}" if kind else "not known"
    return f"{large(peak)} in {dtype} ({program.get('peak_flops_source')})"


def _count(record: Mapping[str, Any], field: str) -> str:
    value = field_value(record, field)
    return "not known" if value is None else large(value)


def memory(runs: Runs, names: Names) -> str:
    """What each device holds by the compiler's plan, and the most it and the process ever had in use."""
    return per_run("Memory", runs, names, _memory)


def _memory(run: RunData) -> str:
    program, peaks = run.last("program"), run.last("memory")
    planned = program.get("memory_per_device_bytes")
    parts = {str(k): float(v) for k, v in planned.items()} if isinstance(planned, dict) else {}
    if not (parts or peaks):
        return ""
    rows = [["planned by the compiler, a device", _size(sum(parts.values())) if parts else "it does not say"]]
    rows.append(["a device's memory", _known(program, "memory_limit_bytes", "not known")])
    rows.append(["most in use on a device", _known(peaks, "device_peak_bytes", "the device keeps no account")])
    if field_value(peaks, "process_peak_bytes") is not None:
        rows.append(["most in use by the process", _known(peaks, "process_peak_bytes", "")])
    return share_bar(parts, "", _size) + table(["", ""], rows)


def _known(record: Mapping[str, Any], field: str, otherwise: str) -> str:
    value = field_value(record, field)
    return otherwise if value is None else _size(value)


def _size(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.1f} MiB"


def parameters(runs: Runs, names: Names) -> str:
    """Parameters by module, all layers of a stack together, and how many of them are trained."""
    return per_run("Parameters", runs, names, _parameters)


def _parameters(run: RunData) -> str:
    program = run.last("program")
    modules, total = program.get("parameters_by_module"), field_value(program, "parameters")
    if not isinstance(modules, dict) or not total:
        return ""
    counts = {str(k): float(v) for k, v in modules.items()}
    rows = [[module, f"{count:,.0f}", f"{count / total:.1%}"] for module, count in counts.items()]
    more = len(rows) - _MOST_MODULES
    rows = rows[:_MOST_MODULES] + ([[f"{more} more modules", "", ""]] if more > 0 else [])
    rows.append(["all", f"{total:,.0f}", "100%"])
    trained = field_value(program, "trained_parameters")
    if trained is not None and trained != total:
        rows.append(["of them trained", f"{trained:,.0f}", f"{trained / total:.1%}"])
    return share_bar(counts, "", large) + table(["module", "parameters", "share"], rows, numbers=(1, 2))
