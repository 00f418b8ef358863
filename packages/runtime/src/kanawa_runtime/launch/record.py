"""A job as JSON that reads back."""

import json
from typing import Any

from kanawa.config import from_json, to_json
from kanawa.errors import UsageError

from kanawa_runtime.launch.job import Job


def job_record(job: Job) -> dict[str, Any]:
    """Returns the job as files hold it."""
    record: dict[str, Any] = json.loads(json.dumps(to_json(job)))
    return record


def job_of(tree: Any) -> Job:
    """Returns the job of a record as `job_record` gives it; raises ConfigError, or UsageError for another config."""
    config = from_json(tree)
    if not isinstance(config, Job):
        message = f"the record holds a {type(config).__name__}, expected a Job"
        raise UsageError(message)
    return config
