"""`kanawa serve`: a run's model behind OpenAI's HTTP interface."""

import argparse
import contextlib
import importlib.util
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kanawa.cli.output import flush, write, write_message
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command
from kanawa.status import stage

if TYPE_CHECKING:
    from kanawa_runtime.serve.http.config import ServeConfig
    from kanawa_runtime.serve.http.served_model import ServedModel
    from kanawa_runtime.serve.training.routes import TrainingRoutes

DEFAULT_PORT = 8000
_MODULES = ("pydantic", "starlette", "uvicorn", "httptools", "jinja2", "prometheus_client", "llguidance")


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="serve",
        help="serve a run's model over HTTP, as OpenAI's API and with a page to chat on",
        configure=configure,
        run=run,
        example=(
            "kanawa serve runs/quickstart\n"
            "kanawa serve downloads/my-model --port 9000 --name mine --set engine.max_sequences=8\n"
            "kanawa serve runs/quickstart --host 0.0.0.0 --api-key-file keys.txt --set server.max_n=4\n"
            "kanawa serve downloads/bert --pool mean\n"
            "kanawa serve downloads/my-model --train --train-state runs/tenants --set training.max_rank=16"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address (default: for this machine alone)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, metavar="N", help="port (default 8000; 0: any free)")
    parser.add_argument("--name", metavar="NAME", help="what clients call the model (default: the folder's name)")
    parser.add_argument("--api-key-file", metavar="FILE", help="clients' keys, one a line; or KANAWA_API_KEYS=a,b")
    parser.add_argument("--admin-key-file", metavar="FILE", help="keys for /load; or KANAWA_ADMIN_KEY")
    parser.add_argument("--chat-template", metavar="FILE", help="a Jinja template instead of the model's own")
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a LoRA that clients may ask for as a model: a run or a folder of peft; repeat for several",
    )
    parser.add_argument("--draft", metavar="RUN", help="a small model that guesses; needs engine.speculative_tokens")
    parser.add_argument("--prefill-listen", metavar="[HOST:]PORT", help="prefill prompts for another server, too")
    parser.add_argument("--prefill-from", metavar="HOST:PORT", help="have prompts prefilled by the server that listens")
    parser.add_argument("--pages-token-file", metavar="FILE", help="the secret that both of these servers share")
    parser.add_argument("--train", action="store_true", help="let clients of the `tinker` package train adapters here")
    parser.add_argument(
        "--train-state",
        default="training-state",
        metavar="DIR",
        help="where their checkpoints lie (default: %(default)s)",
    )
    parser.add_argument(
        "--pool",
        choices=("first", "last", "mean", "labels"),
        help="serve vectors of texts, of their first or last token or the mean, or their labels (default for encoders, "
        "and for models that label)",
    )
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument(
        "--modify",
        action="append",
        default=[],
        metavar="NAME[:key=value,...]",
        help='a modifier, such as mesh:axes={"tensor":2}: key heads over two devices; repeat for several',
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="path=value",
        help="engine.… or server.…: sizes and limits, see docs/serving.md; repeat for several",
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object once it is ready")


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C; returns 0 once what ran has been answered."""
    from kanawa_runtime.process import keep_what_is_loaded, leave_readers_behind, prepare_process

    require_serving("serve")
    if args.train:
        require_training(args)
    began = time.monotonic()
    from kanawa_runtime.serve.http.config import serve_config

    config = serve_config(args.set)
    directory = local_path(args.run_directory)
    from kanawa_runtime.runs.run_path import check_is_directory
    from kanawa_runtime.serve.http.access import is_loopback, keys_from
    from kanawa_runtime.serve.http.lifecycle import HttpServer, listening_socket, spare_logs

    check_is_directory(directory)
    keys = keys_from(_path(args.api_key_file), _path(args.admin_key_file))
    _check_port(args.port)
    prepare_process(serves=True)

    with (
        contextlib.ExitStack() as paired,
        contextlib.ExitStack() as waiting,
        listening_socket(args.host, args.port) as listening,
    ):
        if not keys.are_required and not is_loopback(args.host):
            write_message(
                f"kanawa: warning: {args.host} can be reached from other machines, and no key is asked for; "
                "give --api-key-file FILE"
            )
        with stage(f"reading {directory}"):
            model = _opened(args, config, directory, paired)
            further = _training_routes(model, config, local_path(args.train_state)) if args.train else None
        url = "http://{}:{}".format(f"[{args.host}]" if ":" in args.host else args.host, listening.getsockname()[1])

        def tell() -> None:
            waiting.close()
            keep_what_is_loaded()
            seconds, limits = time.monotonic() - began, model.engine.limits
            if args.json:
                record = {"url": url, "model": model.name, "step": model.step, "max_length": limits.max_length}
                write(json.dumps(record | {"seconds": round(seconds, 3)}))
            else:
                where = f"{model.name} is served at {url} ({url}/v1 for clients)"
                write(f"{where}, ready after {seconds:.1f} s; Ctrl-C ends it")
            flush()

        waiting.enter_context(stage("compiling the engine's programs"))
        routes = None if further is None else further.operations
        server = HttpServer(model, config.server, keys, listening, tell, routes)
        spare_logs()
        code = server.run()
        if further is not None:
            further.close()
    if not server.has_started:
        flush()
        # A compiler is at work in a thread: Python's own way to end would take its memory away.
        os._exit(code)
    leave_readers_behind(code)
    return code


def _opened(
    args: argparse.Namespace, config: "ServeConfig", directory: Path, paired: contextlib.ExitStack
) -> "ServedModel":
    """Returns the model behind its engine; what it shares with another server is stopped by `paired`."""
    from kanawa_runtime.serve.disaggregated.pairing import pairing_of
    from kanawa_runtime.serve.http.from_run import (
        drawing_model,
        draws,
        pooled_model,
        pools,
        served_model,
        transcribes,
        transcribing_model,
    )

    shared: dict[str, Any] = {"name": args.name, "step": args.step, "target": args.on, "modifiers": tuple(args.modify)}
    if pools(directory, args.pool):
        refuse_generation(args)
        return pooled_model(directory, config.engine, args.pool, **shared)
    if transcribes(directory):
        refuse_generation(args)
        require_serving("serve", "python_multipart")
        return transcribing_model(directory, config.engine, **shared)
    if draws(directory):
        refuse_generation(args)
        return drawing_model(directory, config.engine, **shared)
    template = _path(args.chat_template)
    pairing = pairing_of(args.prefill_listen, args.prefill_from, _path(args.pages_token_file))
    if pairing is not None:
        paired.callback(pairing.stop)
    return served_model(
        directory,
        config.engine,
        **shared,
        template=template,
        adapters=adapters_of(args.adapter),
        draft=_path(args.draft),
        pairing=pairing,
        training=config.training if args.train else None,
    )


def refuse_generation(args: argparse.Namespace) -> None:
    """Raises UsageError for an option of models that write texts."""
    options = ("adapter", "draft", "chat_template", "prefill_listen", "prefill_from", "train")
    given = next((name for name in options if getattr(args, name)), None)
    if given is not None:
        message = f"--{given.replace('_', '-')} is for models that generate texts, and this one doesn't; leave it out"
        raise UsageError(message)


def require_serving(verb: str, *further: str) -> None:
    """Raises UsageError naming what is missing and the extra that brings it; imports nothing."""
    missing = [module for module in (*_MODULES, *further) if importlib.util.find_spec(module) is None]
    if missing:
        message = f'kanawa {verb} needs {", ".join(missing)}, not installed here: pip install "kanawa[serve]"'
        raise UsageError(message)


def require_training(args: argparse.Namespace) -> None:
    """Raises UsageError where a training service can't be, before anything is loaded."""
    if importlib.util.find_spec("google.protobuf") is None:
        message = 'kanawa serve --train needs protobuf, not installed here: pip install "kanawa-runtime[train-service]"'
        raise UsageError(message)
    if args.prefill_from or args.prefill_listen:
        message = "--train goes without --prefill-listen and --prefill-from: adapters change while they are served"
        raise UsageError(message)


def _training_routes(model: "ServedModel", config: "ServeConfig", folder: Path) -> "TrainingRoutes":
    from kanawa_runtime.serve.training.routes import training_routes

    return training_routes(model, config.training, folder)


def adapters_of(texts: list[str]) -> dict[str, Path]:
    """Returns folders by name; raises UsageError for a text that is no pair, or a name given twice."""
    adapters: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not (name and equals and folder) or name in adapters:
            why = "is given twice" if name in adapters else "isn't NAME=FOLDER"
            message = f"--adapter {text!r} {why}; give each adapter a name and a folder"
            raise UsageError(message)
        adapters[name] = local_path(folder)
    return adapters


def _path(text: str | None) -> Path | None:
    return None if text is None else local_path(text)


def _check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        message = f"--port {port}: expected 0 to 65535"
        raise UsageError(message)
