"""Writes an inspection for a person, in colours where there are any, or as JSON."""

import argparse
import os
import sys
from typing import Any

from kanawa.cli.arguments import compose_from
from kanawa.cli.output import write, write_json
from kanawa.contracts import DataSource
from kanawa.errors import UsageError

from kanawa_runtime.commands.data.arrays import blocks, holds_tokens, inspect_arrays, pictures_of
from kanawa_runtime.data.inspection import Figures, Part, Row, figures, histogram, inspected_row
from kanawa_runtime.process import prepare_process

_DIM, _BLUE, _PLAIN = "\033[2;33m", "\033[34m", "\033[0m"
_BAR = 40


def inspect(args: argparse.Namespace) -> int:
    """Writes rows and figures of an experiment's data; returns 0."""
    prepare_process()
    source = _source(compose_from(args).config, held_out=args.held_out)
    end = source.num_rows
    if args.rows and end is not None and args.first >= end:
        message = f"--from {args.first}: the data have rows 0 to {end - 1}"
        raise UsageError(message)
    last = args.first + args.rows
    wanted = range(args.first, last if end is None else min(last, end))
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if not holds_tokens(source):
        return inspect_arrays(
            source, wanted, args.sample, experiment=args.experiment, as_json=args.json, coloured=coloured
        )
    rows = [inspected_row(source, index) for index in wanted]
    found = figures(source, args.sample)
    if args.json:
        body = [{**_as_json(row), "pictures": len(pictures_of(source, row.index))} for row in rows]
        write_json({"experiment": args.experiment, "rows": body, **_keyed(found)})
        return 0
    for row in rows:
        _write_row(row, coloured=coloured)
        for number, picture in enumerate(pictures_of(source, row.index), 1):
            write(f"picture {number}, {' x '.join(map(str, picture.shape[:2]))} pixels")
            write("\n".join(blocks(picture, coloured=coloured)))
            write()
    _write_figures(found, source)
    return 0


def _source(config: Any, *, held_out: bool) -> DataSource:
    if "data" not in config.fields() or not isinstance(config.data, DataSource.Config):
        message = "this experiment has no data to inspect; name some: --data FILES"
        raise UsageError(message)
    source: DataSource = config.seeded_data().in_batches(config.batch_size).build()
    if not held_out:
        return source
    rows = source.held_out()
    if rows is None:
        message = "--held-out: these data hold no rows out"
        raise UsageError(message)
    return rows


def _keyed(found: Figures) -> dict[str, Any]:
    body = found.as_json()
    return {"sampled_rows": body.pop("rows"), **body}


def _as_json(row: Row) -> dict[str, Any]:
    segments = [
        {"segment": s.number, "tokens": s.tokens, "parts": [part._asdict() for part in s.parts]} for s in row.segments
    ]
    return {"row": row.index, "source": row.source or None, "padding": row.padding, "segments": segments}


def _write_row(row: Row, *, coloured: bool) -> None:
    of = f" of {row.source}" if row.source else ""
    write(f"row {row.index}{of}: {len(row.segments)} segments, {row.padding} positions of padding")
    for segment in row.segments:
        border = f"-- segment {segment.number}, {segment.tokens} tokens "
        border = border.ljust(72, "-")
        write(f"{_BLUE}{border}{_PLAIN}" if coloured else border)
        write("".join(_shown(part, coloured=coloured) for part in segment.parts))
    write()


def _shown(part: Part, *, coloured: bool) -> str:
    # A file's own escape sequences would move the cursor of whoever looks at it.
    text = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in part.text)
    if part.learned or not text:
        return text
    return f"{_DIM}{text}{_PLAIN}" if coloured else f"[[{text}]]"


def _write_figures(found: Figures, source: DataSource) -> None:
    body = found.as_json()
    total = "without end" if source.num_rows is None else f"{source.num_rows} rows in all"
    write(f"over {found.rows} rows of {found.positions // max(1, found.rows)} positions ({total}):")
    write(f"  packing efficiency   {found.efficiency:.2%} ({body['segments_per_row']:.1f} segments a row)")
    write(f"  learned tokens       {body['learned_share']:.2%} of those that aren't padding")
    lengths = body["segment_lengths"]
    spread = f"5 % below {lengths['p5']}, half below {lengths['p50']}, 95 % below {lengths['p95']}"
    write(f"  lengths of segments  mean {lengths['mean']:.0f}, {spread}, longest {lengths['longest']}")
    share = found.duplicates / max(1, found.examples)
    write(f"  exact duplicates     {found.duplicates} of {found.examples} examples ({share:.2%})")
    if found.rows_by_source:
        write("  shares of sources")
        tokens = sum(found.tokens_by_source.values())
        for name, count in found.rows_by_source.items():
            of_tokens = found.tokens_by_source[name] / max(1, tokens)
            write(f"    {name}: {count / found.rows:.1%} of the rows, {of_tokens:.1%} of the learned tokens")
    write("  lengths of segments, tokens")
    bars = histogram(found.lengths)
    most = max((count for _, _, count in bars), default=1)
    for low, high, count in bars:
        write(f"    {f'{low} to {high}':>16} {'#' * round(_BAR * count / most):<{_BAR}} {count}")
