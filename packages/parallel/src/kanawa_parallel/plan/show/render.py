"""A plan as text for a person: tables by rich where it is installed, by spaces where it isn't."""

import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from kanawa_parallel.plan.show.report import Report

_GIB = 2**30
_TOP = 12


def render(report: Report) -> str:
    """Returns the whole report as text."""
    parts = [_verdict(report), _memory(report), _time(report), _communication(report), _modules(report)]
    parts += [_kernels(report), _suggestions(report)]
    return "\n".join(part for part in parts if part)


def comparison(reports: Iterable[Report]) -> str:
    """Returns targets side by side, quickest first, and which is cheapest."""
    ranked = sorted(reports, key=lambda r: (not r.fits, r.step_seconds))
    rows = [
        (
            r.target, "yes" if r.fits else "no", f"{r.memory_per_device_bytes / _GIB:.1f}", f"{r.step_seconds:.3f}",
            f"{r.tokens_per_step / r.step_seconds if r.step_seconds else 0:,.0f}", f"{r.mfu:.1%}", r.binds,
            "" if r.cost_per_million_tokens is None else f"{r.cost_per_million_tokens:.3f} {r.currency}",
        )
        for r in ranked
    ]  # fmt: skip
    head = ("target", "fits", "GiB a device", "seconds", "tokens/s", "MFU", "binds", "per million tokens")
    text = table("by time", head, rows)
    priced = [r for r in ranked if r.cost_per_million_tokens is not None and r.fits]
    if priced:
        order = sorted(priced, key=lambda r: r.cost_per_million_tokens or 0.0)
        text += "\nby cost: " + ", ".join(f"{r.target} {r.cost_per_million_tokens:.3f}" for r in order)
    return text


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns an aligned table; numbers to the right."""
    if find_spec("rich") is None:
        lines = [[str(cell) for cell in row] for row in (head, *rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        return "\n".join(
            [
                f"\n{title}",
                *("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines),
            ]
        )
    from rich.console import Console
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for index, name in enumerate(head):
        made.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*(str(cell).replace("[", "\\[") for cell in row))
    out = io.StringIO()
    Console(file=out, width=140, no_color=True).print(made)
    return f"\n{title}\n{out.getvalue().rstrip()}"


def _verdict(r: Report) -> str:
    margin = (r.memory_limit_bytes - r.memory_per_device_bytes) / _GIB
    mesh = " x ".join(f"{name} {size}" for name, size in r.mesh.items()) or "one device"
    compiled = f"compiled in {r.compile_seconds:.0f} s" if r.compiled else "NOT COMPILED"
    lines = [
        f"{r.experiment} {r.program} on {r.target}: {r.devices} devices ({r.chips} chips), mesh {mesh}; {compiled}",
        f"{'fits' if r.fits else 'DOES NOT FIT'}: {r.memory_per_device_bytes / _GIB:.2f} of "
        f"{r.memory_limit_bytes / _GIB:.2f} GiB a device, "
        f"{abs(margin):.2f} GiB {'free' if margin >= 0 else 'too much'}",
    ]
    if r.step_seconds:
        known = r.published_error
        beside = "" if known is None else f"; published {r.published_seconds} s, error {known:+.1%}"
        cost = r.cost_per_million_tokens
        money = "" if cost is None else f"; {cost:.4f} {r.currency} per million tokens"
        lines += [
            f"{r.step_seconds:.3f} s a step, {r.tokens_per_step / r.step_seconds:,.0f} tokens/s, MFU {r.mfu:.1%}, "
            f"{r.binds} binds{beside}{money}",
            f"  MFU = {r.mfu_formula}",
            f"  estimate {r.estimated_seconds:.3f} s, with the {r.unestimated_seconds:.3f} s of it that no compiler "
            f"estimates at {r.calibration:.0%} of peak FLOP/s ({r.calibration_source})",
        ]
    return "\n".join([*lines, *([f"  {r.note}"] if r.note else [])])


def _memory(r: Report) -> str:
    rows = [(name, f"{size / _GIB:.3f}") for name, size in r.memory.items()]
    errors = f"arguments by path {r.arguments_error:+.2%}, temporaries alive at the peak {r.temporaries_error:+.1%}"
    return table(f"memory, GiB a device (against the compiler's totals: {errors})", ("what", "GiB"), rows)


def _time(r: Report) -> str:
    if not r.step_seconds:
        return ""
    rows = [(part, f"{value:.4f}", f"{value / r.step_seconds:.1%}") for part, value in r.step_seconds_by.items()]
    ratio = r.flops_per_step / r.model_flops_per_step if r.model_flops_per_step else 0.0
    cycles = "" if r.estimated_cycles is None else f", the compiler's cycles {r.estimated_cycles:.4g}"
    title = f"step time ({r.flops_per_device:.4g} FLOPs a device, {ratio:.3f} of the model's own{cycles})"
    return table(title, ("part", "seconds", "share"), rows)


def _communication(r: Report) -> str:
    rows = [
        (row.axes, row.link, row.kind, f"{row.count:g}", f"{row.bytes / 1e9:.3f}", f"{row.seconds:.4f}",
         f"{row.exposed_seconds:.4f}")
        for row in r.traffic
    ]  # fmt: skip
    if not rows:
        return ""
    return table("communication, a device", ("axes", "link", "collective", "count", "GB", "seconds", "exposed"), rows)


def _modules(r: Report) -> str:
    ranked = sorted(r.modules, key=lambda m: -(m.seconds + m.temporaries / 1e12 + m.parameters / 1e13))[:_TOP]
    rows = [
        (
            m.path, f"{m.parameters / _GIB:.3f}", f"{m.optimizer / _GIB:.3f}", f"{m.temporaries / _GIB:.3f}",
            f"{m.flops:.3g}", f"{m.bytes / 1e9:.1f}", f"{m.seconds:.4f}",
        )
        for m in ranked
    ]  # fmt: skip
    head = ("module", "parameters GiB", "optimizer GiB", "temporaries GiB", "FLOPs", "GB moved", "seconds")
    return table("by module, a device; uncalibrated seconds", head, rows)


def _kernels(r: Report) -> str:
    lines = []
    for choice in r.kernels:
        lines.append(f"kernel {choice['operation']}: {choice['kernel']} for {choice['problem']}")
        lines += [f"  not {each['kernel']}: {each['reason']}" for each in choice["refused"]]
    return "\n".join(["", *lines]) if lines else ""


def _suggestions(r: Report) -> str:
    if not r.suggestions:
        return ""
    lines = ["", "compiled and found to help:"]
    for s in r.suggestions:
        verdict = "fits" if s.fits else "does not fit"
        time = "" if s.step_seconds is None else f", {s.step_seconds:.3f} s a step"
        lines.append(f"  {s.change}: {verdict}, {s.memory_per_device_bytes / _GIB:.2f} GiB a device{time}")
    return "\n".join(lines)
