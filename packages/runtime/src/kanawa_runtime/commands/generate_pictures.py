"""`kanawa generate RUN --pictures-to DIR`: pictures by a run's model, one PNG file each."""

import argparse
import json
import re
from pathlib import Path

from kanawa.cli.output import write
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.status import stage

#: Options of `generate` that are about text.
_OF_TEXT = ("prompt_ids", "picture", "input", "output", "top_k", "top_p")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of models that make pictures."""
    pictures = parser.add_argument_group("pictures")
    words = "write pictures there, of a model that makes some"
    pictures.add_argument("--pictures-to", dest="pictures", metavar="DIR", help=words)
    pictures.add_argument("--label", action="append", metavar="L", help="of what: a name or number (repeatable)")
    pictures.add_argument(
        "--count", type=int, default=1, metavar="N", help="pictures of each label or text (default 1)"
    )
    pictures.add_argument("--steps", type=int, metavar="N", help="calls of the model a picture (default: the run's)")
    pictures.add_argument("--guidance", type=float, metavar="G", help="how far towards it (default 2; 1: as is)")
    pictures.add_argument("--sampler", metavar="NAME", help="see `kanawa list picture_samplers` (default: the run's)")


def refuse_without_pictures(args: argparse.Namespace) -> None:
    """Raises UsageError for options of pictures without --pictures-to."""
    named = [name for name in ("label", "steps", "guidance", "sampler") if getattr(args, name) is not None]
    if named:
        message = f"--{named[0]} is about pictures: add --pictures-to DIR, which gets them"
        raise UsageError(message)


def generate_pictures(args: argparse.Namespace) -> int:
    """Writes the pictures; returns 0. Raises UsageError for a folder that holds some already."""
    import kanawa as kn

    from kanawa_runtime.runs.media import png_bytes
    from kanawa_runtime.serve.pictures.maker import GUIDANCE

    text = next((name for name in _OF_TEXT if getattr(args, name)), None)
    if text is not None:
        fitting = "--pictures-to takes texts or --label, --seed, --steps and --guidance"
        message = f"--{text.replace('_', '-')} is about text; {fitting}"
        raise UsageError(message)
    out = local_path(args.pictures, "--pictures-to")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        message = f"--pictures-to {out} exists and isn't an empty folder; name another, nothing is overwritten"
        raise UsageError(message)
    opened = kn.open(args.run_directory, on=args.on, step=args.step, modify=args.modify)
    guidance = GUIDANCE if args.guidance is None else args.guidance
    settings = {"count": args.count, "seed": args.seed, "steps": args.steps, "sampler": args.sampler}
    if args.label and args.prompt:
        message = "--label and texts were both given; a model makes pictures of one of them"
        raise UsageError(message)
    made = opened.pictures(args.label or args.prompt, guidance=guidance, **settings)
    with stage(f"writing {out}"):
        out.mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(made):
            file = out / _name(number, picture.label)
            file.write_bytes(png_bytes(picture.pixels))
            if args.json:
                write(json.dumps({"file": str(file), "label": picture.label, "seed": picture.seed}))
    if not args.json:
        write(f"wrote {len(made)} pictures to {out}")
    return 0


def _name(number: int, label: str | None) -> Path:
    """Returns a file's name; what a label's name has beside letters and digits becomes a dash."""
    safe = "" if label is None else "-" + re.sub(r"[^\w.]+", "-", label).strip("-.")[:40]
    return Path(f"{number:04d}{safe}.png")
