"""Whether what a launcher renders is what its system would take: the tests' own reading of each system's rules."""

from typing import Any

import yaml
from kanawa_runtime.launch.kubernetes.launcher import PathwaysLauncher
from kanawa_runtime.launch.slurm.launcher import SlurmLauncher

from .kubernetes import problems_of, serving_problems
from .pathways import pathways_problems
from .records import record_problems
from .skypilot import task_problems
from .slurm import script_problems


def file_problems(adapter: Any, files: dict[str, str]) -> list[str]:
    """Returns what is wrong with the one file of a job."""
    ((name, text),) = files.items()
    if name.endswith(".json"):
        return record_problems(adapter, name, text)
    if isinstance(adapter, SlurmLauncher):
        return list(script_problems(text, tuple(adapter.config.options)))
    try:
        items = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        return [f"no YAML: {error}"]
    if name == "deployment.yaml":
        return serving_problems(*items) if len(items) == 2 else [f"{len(items)} objects, expected two"]
    if len(items) != 1:
        return [f"{len(items)} objects, expected one"]
    if name == "task.yaml":
        return task_problems(items[0])
    wrong = problems_of(items[0])
    return wrong or (list(pathways_problems(items[0])) if isinstance(adapter, PathwaysLauncher) else [])
