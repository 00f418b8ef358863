"""`kanawa generate RUN --input FILE --output FILE`: batch inference on the serving engine."""

import argparse
from pathlib import Path
from typing import Any

from kanawa.cli.output import write, write_json
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.status import stage


def generate_file(args: argparse.Namespace) -> int:
    """Answers the file; returns 0, or 1 where a line has an error instead of an answer."""
    from kanawa_runtime.data.tokenizers.of_run import tokenizer_of
    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.runs.open_run import open_run
    from kanawa_runtime.serve.batch.answer import answer_file
    from kanawa_runtime.serve.engine.config import EngineConfig
    from kanawa_runtime.serve.engine.engine import LLMEngine
    from kanawa_runtime.serve.engine.request import SamplingParams

    source, output = _files(args)
    prepare_process(serves=True)
    with stage(f"reading {args.run_directory}"):
        opened = open_run(Path(args.run_directory), target=args.on, step=args.step, serves=True)
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
