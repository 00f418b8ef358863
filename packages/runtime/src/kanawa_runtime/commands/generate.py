"""`kanawa generate`: continue prompts with a run's model."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from kanawa.cli.output import write, write_piece
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command
from kanawa.status import stage

if TYPE_CHECKING:
    from kanawa_runtime.serve.generate import Completion

Pieces: TypeAlias = "Iterator[list[Completion]]"


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="generate",
        help="continue prompts with a run's model",
        configure=configure,
        run=run,
        example=(
            'kanawa generate runs/quickstart --prompt "def " --max-tokens 100 --temperature 0.7 --top-p 0.9\n'
            "kanawa generate runs/quickstart --prompt-ids 1,2,3 --temperature 0 --json\n"
            "kanawa generate runs/quickstart --input prompts.jsonl --output answers.jsonl"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="text to continue (repeatable)")
    parser.add_argument("--prompt-ids", action="append", metavar="1,2,3", help="token ids to continue")
    parser.add_argument("--input", metavar="FILE", help="answer a JSON object a line, with prompt or prompt_ids")
    parser.add_argument("--output", metavar="FILE", help="of --input: its answers in order; resumes")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens (default 128)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest mass P")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draws")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt, one a line")


def run(args: argparse.Namespace) -> int:
    """Generates; returns 0, or 1 where lines of a file have errors."""
    if args.input is not None:
        from kanawa_runtime.commands.generate_file import generate_file

        return generate_file(args)
    if args.output is not None:
        message = "--output goes with --input FILE; one prompt's text is printed"
        raise UsageError(message)
    from kanawa_runtime.data.tokenizers.of_run import no_tokenizer
    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.runs.open_run import open_run
    from kanawa_runtime.serve.generate import Generator
    from kanawa_runtime.serve.healing import first_tokens
    from kanawa_runtime.serve.sampling import SamplingConfig

    if bool(args.prompt) == bool(args.prompt_ids):
        message = "give --prompt TEXT or --prompt-ids 1,2,3 (either may be repeated)"
        raise UsageError(message)
    sampling = SamplingConfig(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed)
    sampling.clone().freeze()
    prepare_process()
    with stage(f"reading {args.run_directory}"):
        _check_continues(args.run_directory)
        opened = open_run(args.run_directory, target=args.on, step=args.step, serves=True)
    model = opened.trainer.model
    tokenizer = _tokenizer(opened, needed=bool(args.prompt))
    if args.prompt and tokenizer is None:
        raise no_tokenizer(opened)
    prompts = _prompts(args, tokenizer, opened.composition.config.model.vocab_size)
    generator = Generator(
        model,
        opened.params,
        state=opened.state,
        environment=opened.environment,
        known=None if tokenizer is None else tokenizer.known,
    )
    stop = () if tokenizer is None else tokenizer.stop_ids
    first = None if tokenizer is None else first_tokens(tokenizer, prompts)
    every = args.max_tokens if args.json else 1
    pieces = generator.stream([p.ids for p in prompts], args.max_tokens, sampling, stop, first, every=every)
    show = _show_json if args.json else _show_growing
    show(args, pieces, prompts, tokenizer)
    return 0


def _show_json(args: argparse.Namespace, pieces: Pieces, prompts: list[Any], tokenizer: Any) -> None:
    from kanawa_runtime.serve.continuation import continued

    *_, completions = pieces
    for text, prompt, completion in zip(args.prompt or args.prompt_ids, prompts, completions, strict=True):
        new = None if tokenizer is None else continued(tokenizer, prompt, completion.token_ids)
        record = {"prompt": text, "text": new, "token_ids": completion.token_ids, "logprobs": completion.logprobs}
        write(json.dumps(record))


def _show_growing(args: argparse.Namespace, pieces: Pieces, prompts: list[Any], tokenizer: Any) -> None:
    """Writes the first completion while it grows, then the others, which were decoded beside it."""
    from kanawa_runtime.serve.continuation import Continuation, continued, visible

    # A file or a pipe gets the text as it is; only a terminal obeys what it is shown.
    safe = visible if sys.stdout.isatty() else str
    if not args.prompt:
        *_, completions = pieces
        for completion in completions:
            write(str(completion.token_ids))
        return
    growing, shown = Continuation(tokenizer, prompts[0]), 0
    # Before the prompt is written: the status line is drawn where it would stand.
    with stage("compiling, and reading the prompt"):
        first = next(pieces)
    write_piece(args.prompt[0])
    for completions in itertools.chain([first], pieces):
        ids = completions[0].token_ids
        write_piece(safe(growing.push(ids[shown:])))
        shown = len(ids)
    write(safe(growing.finish()))
    for text, prompt, completion in zip(args.prompt[1:], prompts[1:], completions[1:], strict=True):
        write(text + safe(continued(tokenizer, prompt, completion.token_ids)))


def _check_continues(directory: str) -> None:
    """Raises UsageError for a model of another kind, before opening it would speak of data to train it on."""
    from kanawa.contracts import CausalLM

    from kanawa_runtime.runs.imported import outline_of
    from kanawa_runtime.storage.place import address_of

    # Other libraries' folders lie on this machine.
    stored = None if address_of(directory) else outline_of(local_path(directory))
    kind = None if stored is None else stored.config._target
    if kind is not None and not issubclass(kind, CausalLM):
        message = f"{directory}: {kind.__qualname__} continues no prompt; models that do are CausalLMs"
        raise UsageError(message)


def _tokenizer(opened: Any, *, needed: bool) -> Any:
    """Returns the run's tokenizer; where ids were given none is needed, and a broken one is as good as none."""
    from kanawa_runtime.data.tokenizers.of_run import tokenizer_of
    from kanawa_runtime.runs.tokenizer_file import TokenizerError

    try:
        return tokenizer_of(opened)
    except TokenizerError:
        if needed:
            raise
        return None


def _prompts(args: argparse.Namespace, tokenizer: Any, vocab_size: int) -> list[Any]:
    from kanawa_runtime.serve.healing import HealedPrompt, heal

    if args.prompt:
        return [heal(tokenizer, text) for text in args.prompt]
    prompts = []
    for text in args.prompt_ids:
        try:
            ids = [int(part) for part in text.split(",")]
        except ValueError:
            message = f"--prompt-ids {text!r}: expected whole numbers separated by commas, such as 1,2,3"
            raise UsageError(message) from None
        outside = [i for i in ids if not 0 <= i < vocab_size]
        if outside:
            message = f"--prompt-ids {text!r}: {outside} are outside of the vocabulary, 0 to {vocab_size - 1}"
            raise UsageError(message)
        prompts.append(HealedPrompt(ids, b""))
    return prompts
