"""`kanawa convert`: models from Hugging Face folders and back, every tensor accounted for; adapters for peft."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.plugins import Command

if TYPE_CHECKING:
    from kanawa.contracts import ModelStore

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_KIND = "model_stores"
_OURS = "huggingface"


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="convert",
        help="convert models from and to Hugging Face folders",
        configure=configure,
        run=run,
        example=(
            "kanawa convert from-hf downloads/Llama-3.2-1B runs/llama --dry-run\n"
            "kanawa convert from-hf downloads/Llama-3.2-1B runs/llama\n"
            "kanawa convert to-hf runs/llama exports/llama --dtype bfloat16 --shard-size 2GB\n"
            "kanawa convert to-peft runs/tuned exports/adapter"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("direction", choices=["from-hf", "to-hf", "to-peft"], help="where from, or where to")
    parser.add_argument("source", metavar="SRC", type=Path, help="a Hugging Face folder, or a run directory")
    parser.add_argument("destination", metavar="DST", type=Path, nargs="?", help="a new directory")
    parser.add_argument("--dry-run", action="store_true", help="list every tensor and write nothing")
    parser.add_argument("--family", metavar="TYPE", help="model_type to use (default: the config's, or what fits)")
    parser.add_argument("--step", type=int, metavar="N", help="to-hf: checkpoint to use (default: the newest)")
    parser.add_argument("--dtype", choices=list(_DTYPES), help="to-hf: dtype of all tensors (default: as they came)")
    parser.add_argument("--shard-size", default="5GB", metavar="SIZE", help="to-hf: most bytes a file (default 5GB)")
    parser.add_argument("--json", action="store_true", help="write JSON for a machine to read")


def run(args: argparse.Namespace) -> int:
    """Converts; returns 0."""
    from kanawa.local_path import local_path

    from kanawa_layers.convert.errors import ConvertError
    from kanawa_layers.convert.huggingface import check_free

    for what, place in (("SRC", args.source), ("DST", args.destination)):
        local_path(place or "", what)
    if args.destination is None and not args.dry_run:
        message = "pass DST, a new directory to write to, or --dry-run"
        raise ConvertError(message)
    if not args.dry_run:
        check_free(args.destination)
    if args.direction == "to-peft":
        _to_peft(args)
        return 0
    record = _from_hf(args) if args.direction == "from-hf" else _to_hf(args)
    _report(args, record)
    return 0


def _to_peft(args: argparse.Namespace) -> None:
    from kanawa.cli.output import write, write_json

    from kanawa_layers.convert.errors import ConvertError
    from kanawa_layers.convert.peft import save_adapter

    if args.dry_run:
        message = "to-peft has no --dry-run: it writes the adapter alone, which is small"
        raise ConvertError(message)
    names = save_adapter(args.destination, _store_of(args.source).load(args.source, args.step))
    if args.json:
        write_json({"tensors": names, "source": str(args.source), "written": str(args.destination)})
        return
    write(f"{len(names)} tensors of the adapter; written to {args.destination}")


def _from_hf(args: argparse.Namespace) -> dict[str, Any]:
    from kanawa.plugins import component

    from kanawa_layers.convert.accounting import describe
    from kanawa_layers.convert.huggingface import HuggingFaceStore
    from kanawa_layers.convert.model_type import model_type_of

    store = HuggingFaceStore(family=args.family)
    folder, _, table, names = store.inspect(args.source)
    dtypes = {name: folder.tensors[held].dtype for name, held in names.items()}
    if not args.dry_run:
        component(_KIND, "run", asker="kanawa-layers")().save(args.destination, store.load(args.source))
    skipped = sorted(set(folder.tensors) - set(names.values()))
    return {
        "model_type": model_type_of(folder.config),
        "tensors": list(describe(table, dtypes)),
        "skipped": skipped,
        "files": sorted(folder.files),
    }


def _to_hf(args: argparse.Namespace) -> dict[str, Any]:
    from kanawa_layers.convert.accounting import describe
    from kanawa_layers.convert.huggingface import HuggingFaceStore
    from kanawa_layers.convert.model_type import model_type_of

    model = _store_of(args.source).load(args.source, args.step)
    dtype = None if args.dtype is None else _DTYPES[args.dtype]
    store = HuggingFaceStore(family=args.family, dtype=dtype, shard_bytes=_bytes(args.shard_size))
    config, table, dtypes = store.plan(model)
    if not args.dry_run:
        store.save(args.destination, model)
    return {
        "model_type": model_type_of(config),
        "tensors": list(describe(table, dtypes)),
        "skipped": [],
        "files": sorted(model.files),
    }


def _store_of(directory: Path) -> ModelStore:
    """Returns the installed store that `directory` belongs to; raises ConvertError where there is none."""
    from kanawa.plugins import ask_each, host

    from kanawa_layers.convert.errors import ConvertError

    found: ModelStore
    for state, found, holds in ask_each(_KIND, lambda store: store.holds(directory)):
        if holds and state.name != _OURS:
            return found
    states = [state for state in host().components(_KIND) if state.name != _OURS and state.state.usable]
    known = ", ".join(state.name for state in states) or "none is installed; pip install kanawa-runtime"
    message = f"{directory} is not a model of any known kind ({known})"
    raise ConvertError(message)


def _bytes(text: str) -> int:
    from kanawa_layers.convert.errors import ConvertError

    number, unit = text[:-2], text[-2:].upper()
    if unit not in _UNITS or not number.isdecimal() or int(number) < 1:
        message = f"--shard-size {text!r}: expected a whole number and a unit, {', '.join(_UNITS)}, such as 5GB"
        raise ConvertError(message)
    return int(number) * _UNITS[unit]


def _report(args: argparse.Namespace, record: dict[str, Any]) -> None:
    import math

    from kanawa.cli.output import write, write_json, write_table

    written = None if args.dry_run else str(args.destination)
    elements = sum(math.prod(line["shape"]) for line in record["tensors"])
    if args.json:
        write_json({**record, "source": str(args.source), "written": written, "parameters": elements})
        return
    if args.dry_run:
        rows = [
            (t["tensor"], t["dtype"], "x".join(map(str, t["shape"])), " + ".join(t["parts"])) for t in record["tensors"]
        ]
        write_table(("tensor", "dtype", "shape", "here"), rows)
    for name in record["skipped"]:
        write(f"not needed: {name}")
    carried = f"; carried along: {', '.join(record['files'])}" if record["files"] else ""
    outcome = "nothing was written" if written is None else f"written to {written}"
    write(f"{record['model_type']}: {len(record['tensors'])} tensors, {elements:,} parameters; {outcome}{carried}")
