"""Whether a manifest would be taken, without a cluster: schema first, then the rules between its fields."""

from typing import Any

from kanawa_runtime.launch.kubernetes.rules import broken_rules
from kanawa_runtime.launch.kubernetes.schema import JOB_SET


def problems_of(manifest: Any) -> list[str]:
    """Returns what is wrong with a JobSet, one sentence each with its place; raises EngineError without jsonschema."""
    wrong = [f"{_place(error.absolute_path)}: {error.message}" for error in _schema_errors(manifest)]
    # The rules read fields, which only the schema makes sure are there.
    return wrong or list(broken_rules(manifest))


def _schema_errors(manifest: Any) -> list[Any]:
    try:
        import jsonschema
    except ModuleNotFoundError as error:
        from kanawa_runtime.launch.errors import EngineError

        message = "manifests are checked with jsonschema, which is missing: pip install 'kanawa-runtime[kubernetes]'"
        raise EngineError(message) from error
    return sorted(jsonschema.Draft202012Validator(JOB_SET).iter_errors(manifest), key=lambda error: str(error.path))


def _place(path: Any) -> str:
    """Returns a path as people write it: spec.replicatedJobs[0].name."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".") or "the manifest"
