"""Whether data fits a JSON schema, in sentences with their places."""

from typing import Any

import jsonschema


def schema_problems(data: Any, schema: dict[str, Any]) -> list[str]:
    """Returns what of the data breaks the schema."""
    broken = jsonschema.Draft202012Validator(schema).iter_errors(data)
    return [f"{_place(error.absolute_path)}: {error.message}" for error in sorted(broken, key=lambda e: str(e.path))]


def _place(path: Any) -> str:
    """Returns a path as people write it: spec.replicatedJobs[0].name."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".") or "the manifest"
