"""A container's parts: its variables, text that Kubernetes leaves as it is, and what it needs. Pure functions."""

from collections.abc import Mapping
from typing import Any

from kanawa_runtime.launch.job import Job
from kanawa_runtime.launch.kubernetes.accelerators import Accelerator

_LABEL = "metadata.labels['jobset.sigs.k8s.io/{}']"


def literal(text: str) -> str:
    """Returns what stands for a text in a command, an argument or a variable.

    Kubernetes puts a variable's value for `$(NAME)` before any shell sees it, and one sign for two.
    """
    return text.replace("$", "$$")


def asked(job: Job, cfg: Any) -> list[dict[str, Any]]:
    """Returns the variables that were asked for: those in clear, then those whose values are in a Secret."""
    clear = named({name: literal(value) for name, value in job.environment.items()})
    return [*clear, *(from_secret(name, place) for name, place in cfg.secrets.items())]


def named(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns variables as containers take them."""
    return [{"name": name, "value": value} for name, value in environment.items()]


def from_label(name: str, label: str) -> dict[str, Any]:
    """Returns a variable that holds what JobSet writes on each pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": _LABEL.format(label)}}}


def from_secret(name: str, place: str) -> dict[str, Any]:
    """Returns a variable whose value is an entry of a Secret, at SECRET/KEY."""
    secret, _, key = place.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def resources(job: Job, needs: Accelerator) -> dict[str, Any]:
    """Returns requests and limits, alike: devices can't be overcommitted, and Kueue counts requests."""
    wanted = {**needs.resources, **job.resources}
    return {"requests": wanted, "limits": wanted} if wanted else {}
