"""`kanawa transcribe`: what is said in sound files, by a run's model of speech."""

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

from kanawa.cli.output import write
from kanawa.errors import UsageError
from kanawa.local_path import local_path
from kanawa.plugins import Command
from kanawa.status import stage

if TYPE_CHECKING:
    import numpy as np

    from kanawa_runtime.serve.speech.transcriber import Asked, Segment, Transcriber

_FORMATS = ("text", "json", "srt", "vtt")


def command() -> Command:
    """Returns the verb."""
    return Command(
        name="transcribe",
        help="write what is said in sound files",
        configure=configure,
        run=run,
        example=(
            "kanawa transcribe downloads/whisper-small talk.wav\n"
            "kanawa transcribe runs/letters a.wav b.wav --json\n"
            "kanawa transcribe downloads/whisper-small talk.wav --language de --format srt"
        ),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("run_directory", metavar="RUN", help="a run directory, or a Hugging Face folder")
    parser.add_argument("files", nargs="+", metavar="FILE", help="WAV of any rate; others with kanawa-runtime[audio]")
    parser.add_argument("--format", choices=_FORMATS, default="text", help="srt and vtt are subtitles (default: text)")
    parser.add_argument(
        "--task", choices=("transcribe", "translate"), default="transcribe", help="translate: to English"
    )
    parser.add_argument("--language", metavar="CODE", help="such as en (default: the likeliest)")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what was said before")
    parser.add_argument("--temperature", type=float, metavar="T", help="default: from 0 on until one will do")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the draws")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to use (default: the newest)")
    parser.add_argument("--on", metavar="TARGET", help="target to run on (default: this machine)")
    parser.add_argument(
        "--modify", action="append", default=[], metavar="NAME[:key=value,...]", help="a modifier, such as weight-only"
    )
    parser.add_argument("--json", action="store_true", help="as --format json: one object a file, with segments")


def run(args: argparse.Namespace) -> int:
    """Transcribes; returns 0, raises UsageError for a file that can't be used before any is read by the model."""
    from kanawa_runtime.commands.serve import require_serving

    require_serving("transcribe")
    from kanawa_runtime.data.speech.wave_files import SoundError, sound_samples
    from kanawa_runtime.process import prepare_process
    from kanawa_runtime.serve.engine.config import EngineConfig
    from kanawa_runtime.serve.engine.request import RequestError
    from kanawa_runtime.serve.http.from_run import transcribes, transcribing_model
    from kanawa_runtime.serve.speech.engine import TranscribingEngine
    from kanawa_runtime.serve.speech.transcriber import Asked, Transcriber

    directory = local_path(args.run_directory)
    if not transcribes(directory):
        message = f"{directory} has no model that transcribes speech; expected Whisper, or a run with speech as data"
        raise UsageError(message)
    prepare_process(serves=True)
    with stage(f"reading {directory}"):
        model = transcribing_model(directory, EngineConfig(), step=args.step, target=args.on, modifiers=(*args.modify,))
    engine = model.engine
    assert isinstance(engine, TranscribingEngine)
    transcriber, rate, sounds = Transcriber(engine, model.tokenizer, model.special), engine.hearing.sample_rate, {}
    for name in args.files:
        try:
            sounds[name] = sound_samples(local_path(name).read_bytes(), rate, 24 * 3600 * rate, converts=True)
        except (OSError, SoundError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            message = f"{name}: {reason}"
            raise UsageError(message) from error
    kind = "json" if args.json else args.format
    asked = Asked(args.task, args.language, args.prompt, args.temperature, kind != "text", args.seed)
    engine.start(compiles=False)
    try:
        for name, samples in sounds.items():
            with stage(f"compiling, and transcribing {name}"):
                found = asyncio.run(_found(transcriber, samples, asked))
            _show(name, kind, found, several=len(sounds) > 1)
    except RequestError as error:
        message = f"--{error.field}: {error}"
        raise UsageError(message) from error
    finally:
        engine.stop()
    return 0


async def _found(transcriber: "Transcriber", samples: "np.ndarray", asked: "Asked") -> list[tuple[str, "Segment"]]:
    return [one async for one in transcriber.segments(samples, asked)]


def _show(name: str, kind: str, found: list[tuple[str, "Segment"]], *, several: bool) -> None:
    from kanawa_runtime.serve.speech.written import as_srt, as_vtt, whole_text

    segments = [segment for _, segment in found]
    if kind == "json":
        parts = [{"start": one.start, "end": one.end, "text": one.text} for one in segments]
        language = next((language for language, _ in found), "")
        write(json.dumps({"file": name, "text": whole_text(segments), "language": language, "segments": parts}))
        return
    text = {"text": whole_text, "srt": as_srt, "vtt": as_vtt}[kind](segments)
    write(f"{name}: {text}" if several and kind == "text" else text)
