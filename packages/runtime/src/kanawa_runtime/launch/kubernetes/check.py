"""Whether a manifest would be taken, without a cluster: schema first, then the rules between its fields."""

from typing import Any

from kanawa_runtime.launch.kubernetes.rules import broken_rules
from kanawa_runtime.launch.kubernetes.schema import JOB_SET
from kanawa_runtime.launch.strict import schema_problems


def problems_of(manifest: Any) -> list[str]:
    """Returns what is wrong with a JobSet, one sentence each with its place; raises EngineError without jsonschema."""
    # The rules read fields, which only the schema makes sure are there.
    return schema_problems(manifest, JOB_SET) or list(broken_rules(manifest))
