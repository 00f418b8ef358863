"""`kanawa chat`: talk with a run's model in the terminal."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kanawa.cli.output import write, write_message, write_piece
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command
from kanawa.status import hidden, stage

if TYPE_CHECKING:
    from kanawa_runtime.serve.conversation import Conversation
    from kanawa_runtime.serve.engine.picture import Picture

_HELP = (
    "/picture FILE shows one with the next message, /reset begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer"
)


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="chat",
        help="talk with a run's model in the terminal",
        configure=configure,
        run=run,
        example="kanawa chat runs/quickstart\nkanawa chat downloads/my-model --system 'Be brief.' --temperature 0.7",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--picture", action="append", default=[], metavar="FILE", help="a picture of the first message (repeatable)"
    )
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N", help="of an answer (default 512)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: the model's own, else 1)")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest mass P")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the draws")
    parser.add_argument("--chat-template", metavar="FILE", help="a Jinja template instead of the model's own")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument(
        "--modify", action="append", default=[], metavar="NAME[:key=value,...]", help="a modifier, such as weight-only"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object an answer, one a line")


def run(args: argparse.Namespace) -> int:
    """Talks until the input ends; returns 0."""
    from kanawa_runtime.commands.serve import require_serving
    from kanawa_runtime.process import prepare_process

    require_serving("chat")
    if args.max_tokens < 1:
        message = f"--max-tokens {args.max_tokens}: expected at least 1"
        raise UsageError(message)
    prepare_process(serves=True)
    from kanawa_runtime.serve.conversation import Conversation
    from kanawa_runtime.serve.engine.config import EngineConfig
    from kanawa_runtime.serve.engine.request import SamplingParams
    from kanawa_runtime.serve.http.from_run import served_model

    directory = local_path(args.run_directory)
    # One speaks at a time: few programs, and the terminal is ready soon.
    config = EngineConfig(max_sequences=1, batch_sizes=(1,), max_queued=1, max_logprobs=0, prompt_logprobs=False)
    with stage(f"reading {directory}"):
        template = None if args.chat_template is None else local_path(args.chat_template)
        model = served_model(
            directory, config, step=args.step, target=args.on, modifiers=tuple(args.modify), template=template
        )
    asked = {name: getattr(args, name) for name in ("temperature", "top_p", "top_k", "seed")}
    chosen = {"temperature": 1.0, **model.defaults, **{k: v for k, v in asked.items() if v is not None}}
    stops = tuple(model.tokenizer.stop_ids)
    sampling = SamplingParams(max_tokens=args.max_tokens, stop_token_ids=stops, **chosen)
    with stage("compiling"):
        model.engine.start()
    try:
        shape = None if model.pictures is None else model.pictures.tokens.shape
        talk(Conversation(model, args.system, sampling), args, plain=not model.template.own, shape=shape)
    finally:
        model.engine.stop()
    return 0


def talk(
    conversation: "Conversation", args: argparse.Namespace, *, plain: bool, shape: tuple[int, ...] | None = None
) -> None:
    """Reads messages and writes answers, until the input ends; `shape` is that of the pictures that a model reads."""
    shown = [_picture(file, shape) for file in args.picture]
    if sys.stdin.isatty() and not args.json:
        about = " It has no chat template: it continues the text." if plain else ""
        write_message(f"Talking with {args.run_directory}.{about} {_HELP}.")
    with hidden():
        for text in _messages():
            if text in ("/exit", "/quit"):
                return
            if text == "/reset":
                conversation.reset()
            elif text.startswith("/picture "):
                with _told():
                    shown.append(_picture(text.removeprefix("/picture ").strip(), shape))
            elif text.startswith("/") and " " not in text:
                write_message(f"no command {text!r}; {_HELP}")
            elif text:
                _answer(conversation, text, args, shown)
                shown = []


def _picture(file: str, shape: tuple[int, ...] | None) -> "Picture":
    """Returns a file's picture; raises UsageError for a model that reads none, and what isn't a picture."""
    from kanawa_runtime.api.questions import picture_of

    if shape is None:
        message = f"{file}: this model reads no pictures"
        raise UsageError(message)
    return picture_of(local_path(file), shape)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        write_message(f"kanawa: {error}")


def _messages() -> Iterator[str]:
    """Yields lines of the input; a Ctrl-C between answers ends as the input's end does."""
    while True:
        if sys.stdin.isatty():
            write_piece("> ")
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        if not line:
            return
        yield line.strip()


def _answer(
    conversation: "Conversation", text: str, args: argparse.Namespace, pictures: "Sequence[Picture]" = ()
) -> None:
    from kanawa_runtime.serve.growing_text import visible

    # A file or a pipe gets the text as it is; only a terminal obeys what it is shown.
    safe = visible if sys.stdout.isatty() else str
    began, stopped, pieces = time.monotonic(), False, []
    try:
        with contextlib.closing(conversation.answer(text, pictures)) as growing:
            for piece in growing:
                pieces.append(piece)
                if not args.json:
                    write_piece(safe(piece))
    except KeyboardInterrupt:
        stopped = True
    except UsageError as error:
        write_message(f"kanawa: {error}; /reset begins anew")
        return
    seconds = time.monotonic() - began
    if args.json:
        record = {"message": text, "answer": "".join(pieces), "tokens": conversation.num_tokens, "stopped": stopped}
        write(json.dumps(record | {"seconds": round(seconds, 3)}))
        return
    write("")
    if sys.stderr.isatty():
        rate = conversation.num_tokens / seconds if seconds else 0.0
        write_message(f"[{conversation.num_tokens} tokens, {rate:.1f} a second{', stopped' if stopped else ''}]")
