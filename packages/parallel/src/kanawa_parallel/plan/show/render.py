"""A plan as text for a person."""

import itertools
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence

from kanawa.kernels.choice import list_choices

from kanawa_parallel.plan.report.report import Report
from kanawa_parallel.plan.report.units import format_bytes, format_count, format_seconds, format_sent

#: Modules that are listed, those that take longest or hold most.
_TOP = 12
#: Columns of a table that goes to a file.
_WIDE = 140
#: Columns that a folded path keeps, however narrow the terminal.
_NARROWEST_PATH = 4


def render(report: Report) -> str:
    """Returns the whole report as text."""
    parts = [_verdict(report), _memory(report), _time(report), _communication(report), _modules(report), _held(report)]
    parts += [_kernels(report), _suggestions(report)]
    return "\n".join(part for part in parts if part)


def comparison(reports: Iterable[Report]) -> str:
    """Returns targets side by side, quickest first, those that don't fit last; and which is cheapest."""
    ranked = sorted(reports, key=lambda r: (not r.fits, r.step_seconds or math.inf))
    rows = [
        (
            r.target, "yes" if r.fits else "no", format_bytes(r.memory_per_device_bytes),
            _or_dash(r.step_seconds, format_seconds), _or_dash(r.tokens_per_second, format_count),
            _or_dash(r.mfu, "{:.1%}".format), r.binds or "-", _cost(r),
        )
        for r in ranked
    ]  # fmt: skip
    head = ("target", "fits", "a device", "step", "tokens/s", "MFU", "binds", "per million tokens")
    text = format_table("by time", head, rows)
    priced = [r for r in ranked if r.cost_per_million_tokens is not None and r.fits]
    if priced:
        order = sorted(priced, key=lambda r: r.cost_per_million_tokens or 0.0)
        text += "\nby cost: " + ", ".join(f"{r.target} {r.cost_per_million_tokens:.3g}" for r in order)
    return text


def format_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns an aligned table, numbers to the right; paths, in the first column, are folded to fit the terminal."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    first, *others = (max(len(line[i]) for line in lines) for i in range(len(head)))
    first = min(first, max(_NARROWEST_PATH, _width() - sum(others) - 2 * len(others)))
    written = ["", title]
    for path, *cells in lines:
        numbers = "".join("  " + cell.rjust(width) for cell, width in zip(cells, others, strict=True))
        written.append((path[:first].ljust(first) + numbers).rstrip())
        written += [path[at : at + first] for at in range(first, len(path), first)]
    return "\n".join(written)


def _width() -> int:
    """Returns the terminal's columns; where there is none, as in a file, enough for every table."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def _or_dash(value: float | None, written: Callable[[float], str]) -> str:
    return "-" if value is None else written(value)


def _cost(r: Report) -> str:
    return "-" if r.cost_per_million_tokens is None else f"{r.cost_per_million_tokens:.3g} {r.currency}"


def _verdict(r: Report) -> str:
    margin = r.memory_margin_bytes
    mesh = " x ".join(f"{name} {n}" for name, n in r.mesh.items()) or "one device"
    took = format_seconds(r.compile_seconds)
    compiled = f"compiled in {took}" if r.compiled else f"ESTIMATED in {took}, not compiled"
    lines = [
        f"{r.experiment} {r.program} on {r.target}: {_many(r.devices, 'device')} ({_many(r.chips, 'chip')}), mesh "
        f"{mesh}; {compiled}",
        f"{'fits' if r.fits else 'DOES NOT FIT'}: {format_bytes(r.memory_per_device_bytes)} of "
        f"{format_bytes(r.memory_limit_bytes)} a device, "
        f"{format_bytes(abs(margin))} {'free' if margin >= 0 else 'too much'}",
    ]
    if r.layers_of_stages:
        alike = ((layers, len(list(same))) for layers, same in itertools.groupby(r.layers_of_stages))
        held = ", ".join(f"{count} x {layers}" if count > 1 else f"{layers}" for layers, count in alike)
        lines.append(f"  layers of the {len(r.layers_of_stages)} stages: {held}")
    if not r.fits:
        lines.append("  no step time: a program that doesn't fit never runs")
    between = r.step_seconds_between
    if r.step_seconds and between and r.tokens_per_second and r.mfu is not None:
        known = r.published_error
        beside = "" if known is None else f"; published {r.published_seconds} s, error {known:+.1%}"
        over = "" if r.mfu <= 1.0 else " (above 100 %: the device's figures are too low)"
        cost = r.cost_per_million_tokens
        money = "" if cost is None else f"; {cost:.3g} {r.currency} per million tokens"
        lines += [
            f"{format_seconds(r.step_seconds)} ({format_seconds(between[0])} to {format_seconds(between[1])}) a step, "
            f"{format_count(r.tokens_per_second)} tokens/s, MFU {r.mfu:.1%}{over}, {r.binds} binds{beside}{money}",
            f"  MFU = {r.mfu_formula}",
            f"  {r.calibration['said']}",
            f"  at the figures' own best {format_seconds(r.estimated_seconds)}, "
            f"{format_seconds(r.unestimated_seconds)} of it estimated by no compiler",
        ]
    return "\n".join([*lines, *([f"  {r.note}"] if r.note else [])])


def _memory(r: Report) -> str:
    rows = [(name, format_bytes(held)) for name, held in r.memory.items()]
    errors = f"arguments by path {r.arguments_error:+.2%}, temporaries alive at the peak {r.temporaries_error:+.1%}"
    return format_table(f"memory of a device (against the compiler's totals: {errors})", ("what", "size"), rows)


def _time(r: Report) -> str:
    if not r.step_seconds:
        return ""
    rows = [(part, format_seconds(value), f"{value / r.step_seconds:.1%}") for part, value in r.step_seconds_by.items()]
    ratio = r.flops_per_step / r.model_flops_per_step if r.model_flops_per_step else 0.0
    cycles = "" if r.estimated_cycles is None else f", the compiler's cycles {format_count(r.estimated_cycles)}"
    title = f"step time ({format_count(r.flops_per_device)} FLOPs a device, {ratio:.3f} of the model's own{cycles})"
    return format_table(title, ("part", "time", "share"), rows)


def _communication(r: Report) -> str:
    rows = [
        (row.axes, row.link, row.kind, f"{row.count:g}", format_sent(row.bytes), format_seconds(row.seconds),
         format_seconds(row.exposed_seconds))
        for row in r.communication
    ]  # fmt: skip
    if not rows:
        return ""
    return format_table(
        "communication, a device", ("axes", "link", "collective", "count", "sent", "time", "exposed"), rows
    )


def _modules(r: Report) -> str:
    # By time; a terabyte of temporaries weighs as much as a second, so that what only holds memory is listed too.
    ranked = sorted(r.modules, key=lambda m: -(m.seconds + m.temporaries / 1e12 + m.parameters / 1e13))[:_TOP]
    rows = [
        (
            m.path, format_bytes(m.parameters), format_bytes(m.optimizer), format_bytes(m.temporaries),
            format_count(m.flops), format_sent(m.bytes), format_seconds(m.seconds),
        )
        for m in ranked
    ]  # fmt: skip
    head = ("module", "parameters", "optimizer", "temporaries", "FLOPs", "moved", "time")
    return format_table("by module, a device; uncalibrated time", head, rows)


def _held(r: Report) -> str:
    total = sum(row.bytes for row in r.held)
    rows = [
        (row.module, row.value, format_bytes(row.bytes), f"{row.bytes / total:.1%}")
        for row in r.held[:_TOP]
        if row.bytes
    ]
    return format_table("temporaries at the fullest moment", ("module", "value", "size", "share"), rows) if rows else ""


def _kernels(r: Report) -> str:
    lines = [line if line.startswith(" ") else f"kernel {line}" for line in list_choices(r.kernels)]
    return "\n".join(["", *lines]) if lines else ""


def _suggestions(r: Report) -> str:
    if not r.suggestions:
        return ""
    how = "compiled" if r.suggestions[0].verified else "estimated"
    lines = ["", f"{how} and found to help:" if r.suggestions[0].fits else f"{how}; less, and still too much:"]
    for s in r.suggestions:
        verdict = "fits" if s.fits else "does not fit"
        time = "" if s.step_seconds is None else f", {format_seconds(s.step_seconds)} a step"
        lines.append(f"  {s.change}: {verdict}, {format_bytes(s.memory_per_device_bytes)} a device{time}")
    return "\n".join(lines)
