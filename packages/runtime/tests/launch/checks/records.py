"""Whether a job in a JSON file reads back whole, and the file says what is derived from it."""

import json
from collections.abc import Iterator
from typing import Any

from kanawa.errors import KanawaError
from kanawa_runtime.launch import Job
from kanawa_runtime.launch.job import job_of, job_record

from .command import command_problems


def record_problems(adapter: Any, name: str, text: str) -> list[str]:
    """Returns what is wrong with a file of an adapter that writes JSON."""
    tree = json.loads(text)
    try:
        job = job_of(tree.get("job", tree))
        if job_record(job) != tree.get("job", tree):
            return ["the record isn't whole"]
        adapter.check(job)
        derived = json.loads(adapter.render(job)[name])
    except (KanawaError, TypeError, ValueError, AttributeError, KeyError) as error:
        return [f"the record can't be read: {error}"]
    wrong = [*command_problems(job.command), *_contradictions(job)]
    return wrong if derived == tree else [*wrong, f"the job asks for {derived}"]


def _contradictions(job: Job) -> Iterator[str]:
    words = list(job.command)
    runs = words[2:3] if words[:2] == ["kanawa", "serve"] else _after(words, "--run")
    if runs and runs != [job.run]:
        yield f"command is about the run {runs[0]!r}, the job about {job.run!r}; they must be one"
    target = "".join(_after(words, "--on"))
    if words[:1] == ["kanawa"] and target != job.target:
        yield f"command is for {target!r}, the job's target is {job.target!r}; they must be one"


def _after(words: list[str], option: str) -> list[str]:
    return words[words.index(option) + 1 :][:1] if option in words else []
