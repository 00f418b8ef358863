"""Hook implementations of kanawa-runtime; imports only kanawa.plugins and the standard library."""

from pathlib import Path
from typing import Any

from kanawa.plugins import Command, Finding, Kind, PublishedStep, hookimpl


@hookimpl
def kanawa_kinds() -> list[Kind]:
    """Returns the kinds under which text data finds its documents, rollouts their rewards, and `launch` its engines."""
    return [
        Kind("corpora", "documents to read text from", subclass_of="kanawa_runtime.data.corpus:Corpus"),
        Kind("rewards", "functions that say how good a rollout is", instance_of="collections.abc:Callable"),
        Kind("samplers", "writers of text during training", instance_of="collections.abc:Callable"),
        Kind("launchers", "engines that run jobs", subclass_of="kanawa_runtime.launch.launcher:Launcher"),
    ]


@hookimpl
def kanawa_commands() -> list[Command]:
    """Returns the verbs that train, evaluate, generate, serve, bench, chat, report, average and launch."""
    from kanawa_runtime.commands import average, bench, chat, evaluate, generate, launch, report, serve, train

    verbs = (train, evaluate, generate, serve, bench, chat, report, average, launch)
    return [verb.command() for verb in verbs]


@hookimpl
def kanawa_doctor() -> list[Finding]:
    """Returns where compiled programs are kept, and which can't be."""
    from kanawa_runtime.compile_cache import finding

    return [finding()]


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
