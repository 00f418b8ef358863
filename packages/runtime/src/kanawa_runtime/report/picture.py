"""A run's loss curve as a picture of its own, for a README."""

from pathlib import Path

from kanawa.errors import UsageError

from kanawa_runtime.report.curves import loss_series
from kanawa_runtime.report.parts import asset
from kanawa_runtime.report.plot import PICTURE, line_plot
from kanawa_runtime.report.run_data import load_run


def loss_picture(run: Path, path: Path) -> None:
    """Writes an SVG of the training and evaluation loss.

    Raises UsageError where the run has no step yet.
    """
    data = load_run(Path(run))
    series = loss_series([data], [data.name])
    plot = line_plot(
        series,
        x_label="completed updates",
        y_label="loss (nats a token)",
        allow_log=True,
        size=PICTURE,
    )
    if not plot:
        message = f"{run} has no step to plot yet; train it first: kanawa train EXPERIMENT --run {run}"
        raise UsageError(message)
    width, height = PICTURE
    legend, at = [], width - 20
    for one in reversed([s for s in series if not s.faint]):
        legend.append(f'<text x="{at}" y="30" text-anchor="end">{one.name}</text>')
        # Nothing here can measure text; a character of the 12 pixel font is about 7 wide.
        at -= 7 * len(one.name) + 18
        legend.append(f'<rect x="{at}" y="24" width="14" height="3" rx="1.5" fill="var(--c{one.colour})"/>')
        at -= 18
    frame = f'<rect width="{width}" height="{height}" rx="10" fill="var(--card)"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" class="plot"'
    start = plot.index(">") + 1
    # data-plot is for the page's script, and a README runs none; alone, a file needs xmlns and a size as well.
    opening = plot[:start].split(" data-plot=")[0].replace('<svg class="plot"', head) + ">"
    body = plot[start:].replace("</svg>", "".join(legend) + "</svg>")
    Path(path).write_text(f"{opening}<style>{asset('colours.css', 'plot.css')}</style>{frame}{body}\n")
