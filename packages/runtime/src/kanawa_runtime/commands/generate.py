"""`kanawa generate`: continue prompts with a run's model."""

import argparse
import json
from pathlib import Path
from typing import Any

from kanawa.cli.output import write
from kanawa.errors import UsageError
from kanawa.plugins import Command


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="generate",
        help="continue prompts with a run's model",
        configure=configure,
        run=run,
        example=(
            'kanawa generate runs/quickstart --prompt "def " --max-tokens 100 --temperature 0.7 --top-p 0.9\n'
            "kanawa generate runs/quickstart --prompt-ids 1,2,3 --temperature 0 --json"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="text to continue (repeatable)")
    parser.add_argument("--prompt-ids", action="append", metavar="1,2,3", help="token ids to continue")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="new tokens (default 128)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest mass P")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draws")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt, one a line")


def run(args: argparse.Namespace) -> int:
    """Generates; returns 0."""
    from kanawa_runtime.commands.process import prepare_process
    from kanawa_runtime.serve.generate import Generator
    from kanawa_runtime.serve.healing import first_tokens
    from kanawa_runtime.serve.open_run import open_run, tokenizer_of
    from kanawa_runtime.serve.sampling import SamplingConfig

    if bool(args.prompt) == bool(args.prompt_ids):
        message = "give --prompt TEXT or --prompt-ids 1,2,3 (either may be repeated)"
        raise UsageError(message)
    sampling = SamplingConfig(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed)
    prepare_process()
    opened = open_run(Path(args.run_directory), target=args.on, step=args.step)
    tokenizer = tokenizer_of(opened) if args.prompt else _tokenizer_if_any(opened)
    prompts = _prompts(args, tokenizer, opened.composition.config.model.vocab_size)
    generator = Generator(opened.trainer.model, opened.params, state=opened.state, environment=opened.environment)
    stop = () if tokenizer is None else (tokenizer.eos_id,)
    first = None if tokenizer is None else first_tokens(tokenizer, prompts)
    completions = generator.generate([p.ids for p in prompts], args.max_tokens, sampling, stop, first)
    shown = args.prompt or args.prompt_ids
    for text, prompt, found in zip(shown, prompts, completions, strict=True):
        new = None
        if tokenizer is not None:
            new = tokenizer.decode_bytes(found.token_ids).removeprefix(prompt.blanks).decode("utf-8", "replace")
        record = {"prompt": text, "text": new, "token_ids": found.token_ids, "logprobs": found.logprobs}
        readable = f"{text}{new}" if new is not None and args.prompt else str(found.token_ids)
        write(json.dumps(record) if args.json else readable)
    return 0


def _tokenizer_if_any(opened: object) -> object | None:
    from kanawa_runtime.serve.open_run import tokenizer_of

    try:
        return tokenizer_of(opened)
    except UsageError:
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
