"""An inspection of rows that aren't of tokens: shapes, values, classes, and pictures as blocks of the terminal."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from kanawa.cli.output import write, write_json
from kanawa.contracts import DataSource

#: Characters across: a half block is two pixels, one above the other.
_ACROSS = 32
_RAMP = " .:-=+*#%@"


def holds_tokens(source: DataSource) -> bool:
    """Returns whether rows are of tokens to predict, which are shown as text."""
    fields = [source.fields.get(name) for name in ("input_ids", "target_ids", "loss_weights")]
    is_text = all(field is not None and field.axes == ("length",) for field in fields)
    return is_text and "decoder_input_ids" not in source.fields


def pictures_of(source: DataSource, index: int) -> list[np.ndarray]:
    """Returns the pictures among a row's tokens, uint8 [height, width, channels], in order; what is empty isn't one."""
    if not any(field is not None and len(field.shape) == 4 for field in source.fields.values()):
        return []
    arrays = [array for array in source.row(index).values() if array.ndim == 4 and array.dtype == np.uint8]
    return [picture for array in arrays for picture in array if picture.any()]


def inspect_arrays(
    source: DataSource, rows: Sequence[int], sample: int, *, experiment: str, as_json: bool, coloured: bool
) -> int:
    """Writes rows and figures; returns 0."""
    shown = [_row(source, index) for index in rows]
    found = _figures(source, sample)
    if as_json:
        body = [{key: value for key, value in row.items() if key != "image"} for row in shown]
        write_json({"experiment": experiment, "rows": body, **found})
        return 0
    for row in shown:
        write(f"row {row['row']}: {row['text']}".rstrip(": "))
        for name, facts in row["arrays"].items():
            of = "" if facts["min"] == facts["max"] else f" to {facts['max']:g}, mean {facts['mean']:.4g}"
            write(f"  {name:<16} {facts['dtype']} {facts['shape']}  {facts['min']:g}{of}")
        if row["image"] is not None:
            write("\n".join(blocks(row["image"], coloured=coloured)))
        write()
    total = "without end" if source.num_rows is None else f"{source.num_rows} rows in all"
    write(f"over {found['sampled_rows']} rows ({total}), {found['rows_per_second']:.0f} a second:")
    write(f"  weight 0             {found['left_out']} rows")
    for name, means in found["channel_means"].items():
        deviations = found["channel_stddevs"][name]
        write(f"  {name + ', channels':<20} mean {_listed(means)}, stddev {_listed(deviations)}")
    for name, count in found["classes"].items():
        write(f"  {name:<20} {count}")
    return 0


def blocks(image: np.ndarray, *, coloured: bool, across: int = _ACROSS) -> list[str]:
    """Returns the lines of a uint8 picture [height, width, channels]: half blocks in colours, else shades of text."""
    height, width = image.shape[:2]
    across = min(across, width)
    down = max(1, round(height * across / width / 2))
    # The mean of what a character covers, not one pixel of it.
    pixels = image.astype(np.float32) if image.shape[2] == 3 else np.repeat(image[..., :1], 3, -1).astype(np.float32)
    if not coloured:
        grey = _cells(pixels, down, across).mean(-1)
        return ["".join(_RAMP[min(int(value / 256 * len(_RAMP)), len(_RAMP) - 1)] for value in line) for line in grey]
    cells = _cells(pixels, 2 * down, across).astype(int).tolist()
    return [
        "".join(
            f"\033[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(cells[line], cells[line + 1], strict=True)
        )
        + "\033[0m"
        for line in range(0, 2 * down, 2)
    ]


def _cells(pixels: np.ndarray, down: int, across: int) -> np.ndarray:
    for axis, count in ((0, down), (1, across)):
        edges = np.linspace(0, pixels.shape[axis], count + 1).astype(int)
        starts = np.minimum(edges[:-1], pixels.shape[axis] - 1)
        sizes = np.maximum(np.diff(edges), 1).reshape([-1 if i == axis else 1 for i in range(3)])
        summed = np.add.reduceat(pixels, starts, axis=axis)
        pixels = summed / sizes
    return pixels


def _row(source: DataSource, index: int) -> dict[str, Any]:
    row = source.row(index)
    seen = source.shown(row)
    arrays = {name: _facts(array) for name, array in row.items()}
    text, image = ("", None) if seen is None else (seen.text, seen.image)
    return {"row": index, "text": text, "arrays": arrays, "image": image}


def _facts(array: np.ndarray) -> dict[str, Any]:
    values = np.asarray(array)
    size = {"dtype": str(values.dtype), "shape": list(values.shape)}
    if not values.size:
        return {**size, "min": 0.0, "max": 0.0, "mean": 0.0}
    return {**size, "min": float(values.min()), "max": float(values.max()), "mean": float(values.mean())}


def _figures(source: DataSource, sample: int) -> dict[str, Any]:
    """Returns figures over the first rows: classes, what is left out, means by channel as PixelNorm takes them."""
    end = source.num_rows
    count = sample if end is None else min(sample, end)
    classes, left_out = Counter[int](), 0
    sums: dict[str, list[np.ndarray]] = {}
    began = time.perf_counter()
    for index in range(count):
        row = source.row(index)
        if not np.any(row.get("loss_weights", 1)):
            left_out += 1
            continue
        if source.class_names:
            classes[int(row["target_ids"])] += 1
        for name, array in row.items():
            if array.ndim == 3 and array.dtype == np.uint8:
                flat = array.reshape(-1, array.shape[-1]).astype(np.float64) / 255
                sums.setdefault(name, []).append(np.stack([flat.mean(0), (flat**2).mean(0)]))
    means = {name: np.mean(parts, 0) for name, parts in sums.items()}
    return {
        "sampled_rows": count,
        "rows_per_second": count / max(time.perf_counter() - began, 1e-9),
        "left_out": left_out,
        "classes": {name: classes[number] for number, name in enumerate(source.class_names)},
        "channel_means": {name: both[0].tolist() for name, both in means.items()},
        "channel_stddevs": {name: np.sqrt(both[1] - both[0] ** 2).tolist() for name, both in means.items()},
    }


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
