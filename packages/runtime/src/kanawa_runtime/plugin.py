"""Hook implementations of kanawa-runtime; imports only kanawa.plugins and the standard library."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kanawa.plugins import Command, CommandOptions, Finding, Kind, PublishedStep, hookimpl


@hookimpl
def kanawa_kinds() -> list[Kind]:
    """Returns the kinds under which text data finds its documents, rollouts their rewards, servers routes."""
    return [
        Kind("corpora", "documents to read text from", subclass_of="kanawa_runtime.data.corpus:Corpus"),
        Kind("records", "records of files", subclass_of="kanawa_runtime.data.records.record:Records"),
        Kind("rewards", "functions that say how good a rollout is", instance_of="collections.abc:Callable"),
        Kind(
            "interactions",
            "what answers a policy between its turns: tools, games, users",
            subclass_of="kanawa_runtime.rollouts.interaction:Interaction",
        ),
        Kind("routes", "functions that return a server's routes", instance_of="collections.abc:Callable"),
        Kind("samplers", "writers of text during training", instance_of="collections.abc:Callable"),
        Kind(
            "launchers",
            "submitters of jobs to Slurm, Kubernetes, Ray and others",
            subclass_of="kanawa_runtime.launch.launcher:Launcher",
        ),
    ]


@hookimpl
def kanawa_commands() -> list[Command]:
    """Returns the verbs of training, evaluation, serving, launching and data."""
    from kanawa_runtime.commands import (
        average,
        bench,
        chat,
        evaluate,
        generate,
        launch,
        report,
        serve,
        sweep,
        tokenizer,
        train,
        transcribe,
    )
    from kanawa_runtime.commands.data import verb as data

    verbs = (train, evaluate, generate, serve, bench, chat, report, average, launch, sweep, data, tokenizer, transcribe)
    return [verb.command() for verb in verbs]


@hookimpl
def kanawa_doctor(options: Mapping[str, Any]) -> list[Finding]:
    """Returns where compiled programs are cached, and what trying this machine shows."""
    from kanawa_runtime.compile_cache import finding
    from kanawa_runtime.preflight.machine import findings

    return [finding(), *findings(options)]


@hookimpl
def kanawa_command_options() -> list[CommandOptions]:
    """Returns the options of `kanawa doctor` that say which folder, network and hosts to try."""
    from kanawa_runtime.preflight.machine import configure

    example = "kanawa doctor --run /shared/runs/a --hosts 4 --coordinator 10.0.0.1:8476"
    return [CommandOptions(verb="doctor", configure=configure, run=lambda args: None, example=example)]


@hookimpl
def kanawa_local_folder(address: str) -> Path | None:
    """Returns the folder with the small files of a run at an address that an installed storage speaks."""
    from kanawa.contracts import knows_address

    from kanawa_runtime.storage.mirror import readable_folder

    return readable_folder(address) if knows_address(address) else None


@hookimpl
def kanawa_config_checks(config: Any, target: Any) -> list[str]:
    """Returns what of an experiment's data doesn't fit its model."""
    del target
    if not {"data", "model"} <= set(config.fields()):
        return []
    from kanawa_runtime.experiments.checks import data_problems

    return data_problems(config)


@hookimpl
def kanawa_published_steps() -> list[PublishedStep]:
    """Returns what others published of the experiments here."""
    from kanawa_runtime.experiments.published import PUBLISHED

    return list(PUBLISHED)
