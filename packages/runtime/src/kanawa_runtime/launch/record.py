"""A job as it stands in a file: whether it reads back whole, and says the same thing in each of its places."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kanawa.config import from_json, to_json
from kanawa.errors import KanawaError, UsageError

from kanawa_runtime.launch.command import command_problems
from kanawa_runtime.launch.errors import JobError
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


def read_job(tree: Any, launcher: str) -> Job:
    """Returns the job of a record; raises JobError for one that isn't whole, or contradicts itself."""
    try:
        job = job_of(tree)
    except (KanawaError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise JobError(launcher, [f"the record can't be read: {error}"]) from error
    wrong = []
    if job_record(job) != tree:
        missing = sorted(set(job_record(job)) - set(tree))
        wrong.append(f"the record isn't whole: {', '.join(missing) or 'a value'} would be made up; render it again")
    if not wrong:
        wrong = [*command_problems(job.command), *_contradictions(job)]
    if wrong:
        raise JobError(launcher, wrong)
    return job


def _contradictions(job: Job) -> Iterator[str]:
    words = list(job.command)
    runs = words[2:3] if words[:2] == ["kanawa", "serve"] else _after(words, "--run")
    if runs and runs != [job.run]:
        yield f"command is about the run {runs[0]!r}, the job about {job.run!r}; they must be one"
    target = "".join(_after(words, "--on"))
    if words[:1] == ["kanawa"] and target != job.target:
        yield f"command is for {target!r}, the job's target is {job.target!r}; they must be one"
    if job.is_gang and job.replicas > 1:
        yield f"{job.replicas} replicas of a gang: only a server has some; raise slices or hosts"


def _after(words: list[str], option: str) -> list[str]:
    return words[words.index(option) + 1 :][:1] if option in words else []


def read_json(text: str, names: Iterable[str], launcher: str) -> dict[str, Any]:
    """Returns the object in a file; raises JobError unless it has these entries and no others."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise JobError(launcher, [f"the file is no JSON: {error}"]) from error
    wanted = set(names)
    if not isinstance(tree, dict) or set(tree) != wanted:
        given = sorted(tree) if isinstance(tree, dict) else type(tree).__name__
        raise JobError(launcher, [f"the file holds {given}, expected {sorted(wanted)}; render it again"])
    return tree


def check_record(
    text: str, derive: Callable[[Job], dict[str, Any]], check: Callable[[Job], None], launcher: str
) -> None:
    """Raises JobError for a file unless it has the entries that `derive` makes of the job in it, as they are made."""
    names = derive(Job(name="a", command=["b"]))
    record = read_json(text, names, launcher)
    job = read_job(record["job"], launcher)
    check(job)
    for entry, derived in derive(job).items():
        if record[entry] != derived:
            given = f"{entry} is {record[entry]!r}, and the job asks for {derived!r}; render it again"
            raise JobError(launcher, [given])
