"""`kanawa generate`: continue prompts with a run's model, one by one or a file of them."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.cli.output import write, write_json, write_piece
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command
from kanawa.status import stage

from kanawa_runtime.commands import generate_pictures

if TYPE_CHECKING:
    from kanawa.contracts import Generated


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="generate",
        help="continue prompts, or make pictures, with a run's model",
        configure=configure,
        run=run,
        example=(
            'kanawa generate runs/quickstart --prompt "def" --max-tokens 100 --temperature 0.7 --top-p 0.9\n'
            "kanawa generate runs/quickstart --prompt-ids 1,2,3 --temperature 0 --json\n"
            "kanawa generate runs/diffusion --prompt def --denoising-steps 32\n"
            "kanawa generate runs/quickstart --input prompts.jsonl --output answers.jsonl\n"
            'kanawa generate downloads/llava --prompt "What is it?" --picture 0001.jpg --temperature 0\n'
            "kanawa generate runs/dit-tiny --label 3 --pictures-to out/ --steps 20 --guidance 2\n"
            'kanawa generate runs/mmdit-tiny "a red star" --pictures-to out/ --count 4'
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="text to continue, or of pictures (as --prompt)")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="text to continue (repeatable)")
    parser.add_argument("--prompt-ids", action="append", metavar="1,2,3", help="token ids to continue")
    parser.add_argument(
        "--picture",
        action="append",
        default=[],
        metavar="FILE",
        help="a picture before each prompt, which is then a message in the model's chat template (repeatable)",
    )
    parser.add_argument("--input", metavar="FILE", help="answer a JSON object a line, with prompt or prompt_ids")
    parser.add_argument("--output", metavar="FILE", help="of --input: its answers in order; resumes")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens (default 128)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest mass P")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draws")
    parser.add_argument("--denoising-steps", type=int, metavar="K", help="of masked diffusion (default: one a token)")
    parser.add_argument("--block-tokens", type=int, metavar="N", help="of masked diffusion: fill N at a time in order")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument(
        "--modify", action="append", default=[], metavar="NAME[:key=value,...]", help="a modifier, such as weight-only"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt or picture, one a line")
    generate_pictures.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Generates; returns 0, or 1 where lines of a file have errors."""
    args.prompt = [*args.texts, *(args.prompt or [])] or None
    if args.pictures is not None:
        return generate_pictures.generate_pictures(args)
    generate_pictures.refuse_without_pictures(args)
    if args.input is not None:
        return generate_file(args)
    if args.output is not None:
        message = "--output goes with --input FILE; one prompt's text is printed"
        raise UsageError(message)
    if bool(args.prompt) == bool(args.prompt_ids):
        message = "give --prompt TEXT or --prompt-ids 1,2,3 (either may be repeated)"
        raise UsageError(message)
    import kanawa as kn

    names = ("max_tokens", "temperature", "top_k", "top_p", "seed", "denoising_steps", "block_tokens")
    settings = {name: getattr(args, name) for name in names}
    opened = kn.open(args.run_directory, on=args.on, step=args.step, modify=args.modify)
    prompts: Any = args.prompt or [_ids(text) for text in args.prompt_ids]
    pictures: Any = [args.picture] * len(prompts) if args.picture else None
    if args.json:
        made = opened.generate(prompts, pictures=pictures, **settings)
        for text, one in zip(args.prompt or args.prompt_ids, made, strict=True):
            write(json.dumps({**one.as_json(), "prompt": text}))
    elif args.prompt:
        _show_growing(opened.stream(prompts, pictures=pictures, **settings))
    else:
        for one in opened.generate(prompts, pictures=pictures, **settings):
            write(str(one.token_ids))
    return 0


def _show_growing(pieces: "Iterator[list[Generated]]") -> None:
    """Writes the first prompt's text while it grows, then the others, which were decoded beside it."""
    from kanawa_runtime.serve.growing_text import visible

    # A file or a pipe gets the text as it is; only a terminal obeys what it is shown.
    safe = visible if sys.stdout.isatty() else str
    # Before the prompt is written: the status line is drawn where it would stand.
    with stage("compiling, and reading the prompt"):
        first = next(pieces)
    write_piece(str(first[0].prompt))
    last, shown = first, ""
    for last in itertools.chain([first], pieces):
        text = last[0].text or ""
        write_piece(safe(text.removeprefix(shown)))
        shown = text
    write("")
    for one in last[1:]:
        write(f"\n{one.prompt}{safe(one.text or '')}")


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        message = f"--prompt-ids {text!r}: expected whole numbers separated by commas, such as 1,2,3"
        raise UsageError(message) from None


def generate_file(args: argparse.Namespace) -> int:
    """Answers the file; returns 0, or 1 where a line has an error instead of an answer."""
    from kanawa_runtime.data.tokenizers.load import tokenizer_of
    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.runs.open_run import open_run
    from kanawa_runtime.serve.batch.answer import answer_file
    from kanawa_runtime.serve.engine.config import EngineConfig
    from kanawa_runtime.serve.engine.engine import LLMEngine
    from kanawa_runtime.serve.engine.request import SamplingParams

    source, output = _files(args)
    prepare_process(serves=True)
    with stage(f"reading {args.run_directory}"):
        opened = open_run(
            Path(args.run_directory), target=args.on, step=args.step, modifiers=tuple(args.modify), serves=True
        )
    tokenizer = tokenizer_of(opened)
    defaults = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k or 0,
        top_p=1.0 if args.top_p is None else args.top_p,
        seed=args.seed,
        stop_token_ids=() if tokenizer is None else tuple(tokenizer.stop_ids),
    )
    # Nothing is streamed: more tokens a call, though they come in bursts.
    engine = LLMEngine.of_run(opened, EngineConfig(fused_steps=16))
    with stage("compiling the engine's programs"):
        engine.start()
    try:
        with stage(f"answering {source}"):
            answers = answer_file(
                engine,
                source,
                output,
                defaults=defaults,
                model=f"{Path(args.run_directory).resolve()}@{opened.step}",
                tokenizer=tokenizer,
            )
    finally:
        engine.stop()
    if args.json:
        summary: dict[str, Any] = {"output": str(output), "lines": answers.lines, "failed": answers.failed}
        write_json(summary | {"answered_before": answers.before})
    else:
        kept = f", {answers.before} of them before" if answers.before else ""
        write(f"wrote {output}: {answers.lines} lines{kept}; {answers.failed} with an error")
    return 1 if answers.failed else 0


def _files(args: argparse.Namespace) -> tuple[Path, Path]:
    if args.picture:
        message = "--picture goes with --prompt; lines of --input have no pictures"
        raise UsageError(message)
    if args.prompt or args.prompt_ids:
        message = "--input takes the place of --prompt and --prompt-ids; give one of them"
        raise UsageError(message)
    if args.output is None:
        message = "--input needs --output FILE, which gets a line of JSON for each of its lines"
        raise UsageError(message)
    source, output = local_path(args.input, "--input"), local_path(args.output, "--output")
    if not source.is_file():
        message = f"--input: there is no file {source}; expected a JSON object a line, with prompt or prompt_ids"
        raise UsageError(message)
    if not output.parent.is_dir():
        message = f"--output {output}: there is no folder {output.parent}; make it first"
        raise UsageError(message)
    return source, output
