"""Small pieces of HTML. Every text is escaped here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from importlib.resources import files

from kanawa_runtime.report.plot import NARROW, WIDE, Series, line_plot
from kanawa_runtime.report.run_data import RunData

#: Smaller parts of a bar are not drawn; each part keeps its colour on all bars.
_LEAST_SHARE = 0.005
_COLOURS = 8


def large(value: float) -> str:
    """Returns a count of anything with three digits: "950", "9.21 k", "989 T"."""
    for limit, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def asset(*names: str) -> str:
    """Returns style sheets or scripts of the page, one after the other."""
    return "".join(files("kanawa_runtime.report").joinpath("assets", name).read_text() for name in names)


def section(title: str, body: str) -> str:
    """Returns a titled section; `body` is HTML."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def card(body: str) -> str:
    """Returns a box; `body` is HTML."""
    return f'<div class="card">{body}</div>'


def per_run(
    title: str, runs: Sequence[RunData], names: Sequence[str], shown: Callable[[RunData], str], note: str = ""
) -> str:
    """Returns a section with a box for each run of which `shown` returns HTML, named where there are several runs."""
    boxes = []
    for run, name in zip(runs, names, strict=True):
        body = shown(run)
        head = f"<h3>{escape(name)}</h3>" if len(runs) > 1 else ""
        boxes += [card(head + body)] if body else []
    return section(title, note + "".join(boxes)) if boxes else ""


def tile(value: str, label: str) -> str:
    """Returns a key figure."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    code: bool = False,
    stacked: bool = False,
) -> str:
    """Returns a table of texts; columns in `numbers` are set right, `code` sets all in monospace.

    Wide tables scroll within their card, so that the page itself never does. One of long texts is `stacked`: on narrow
    pages its cells stand below one another, each with its column's name.
    """

    def cell(tag: str, index: int, text: str) -> str:
        shown = f"<code>{escape(text)}</code>" if code and tag == "td" and text else escape(text)
        kind = ' class="n"' if index in numbers else ""
        if stacked and tag == "td":
            kind += f' data-column="{escape(head[index])}"'
        return f"<{tag}{kind}>{shown}</{tag}>"

    lines = ["".join(cell("th", i, text) for i, text in enumerate(head))]
    lines += ["".join(cell("td", i, text) for i, text in enumerate(row)) for row in rows]
    opening = '<table class="stacked">' if stacked else "<table>"
    return f'<div class="scroll">{opening}{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def figure(
    title: str,
    series: Sequence[Series],
    *,
    y_label: str,
    note: str = "",
    allow_log: bool = False,
    from_zero: bool = False,
    size: tuple[int, int] = WIDE,
) -> str:
    """Returns a plot over completed updates with its title and legend; "" where there is nothing to plot.

    It is drawn twice, for wide pages and for narrow ones; the style sheet shows one of them.
    """
    plots = [
        line_plot(
            series, x_label="completed updates", y_label=y_label, allow_log=allow_log, from_zero=from_zero, size=drawn
        )
        for drawn in (size, NARROW)
    ]
    if not plots[0]:
        return ""
    plot = f'<div class="broad">{plots[0]}</div><div class="narrow">{plots[1]}</div>'
    shown = [s for s in series if not s.faint]
    # One curve needs no legend: its title says what it is.
    legend = "".join(f"<span>{_swatch(s)}{escape(s.name)}</span>" for s in shown)
    legend = f'<div class="legend">{legend}</div>' if len(shown) > 1 else ""
    said = f"<p>{escape(note)}</p>" if note else ""
    return card(f"<h3>{escape(title)}</h3>{said}{legend}{plot}")


def _swatch(series: Series) -> str:
    """Returns what a series looks like, for a legend: runs side by side share a colour among several."""
    kind = "level" if series.level else "points" if not series.joined else "dashes" if series.marked else "line"
    return f'<i class="{kind}" style="color:var(--c{series.colour})"></i>'


def share_bar(parts: Mapping[str, float], name: str, text: Callable[[float], str]) -> str:
    """Returns a bar whose parts are shares of their sum, with a legend of `text(value)`; "" for a sum of nothing."""
    total = sum(parts.values())
    if total <= 0:
        return ""
    pieces, legend = [], []
    for index, (label, value) in enumerate(parts.items()):
        share, colour = value / total, index % _COLOURS + 1
        if share < _LEAST_SHARE:
            continue
        pieces.append(f'<i style="width:{100 * share:.2f}%;background:var(--c{colour})"></i>')
        legend.append(
            f'<span><i style="background:var(--c{colour})"></i>{escape(label)} {text(value)} ({share:.0%})</span>'
        )
    head = f"<h3>{escape(name)}</h3>" if name else ""
    return f'{head}<div class="bar">{"".join(pieces)}</div><div class="legend">{"".join(legend)}</div>'
