"""From documents to requests: templates rendered, solved examples before each question, contexts and continuations.

The order of texts and the draws of examples are those of lm-eval 0.4, so that a task asks the same in both.
"""

import ast
import contextlib
import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa.errors import did_you_mean

from kanawa_runtime.data.records.record import Record
from kanawa_runtime.evaluate.task import Task, TaskError

_FIELD = re.compile(r"[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class Item:
    """One document: its requests, (context, continuation) each, and what is right.

    Of choices, `right_choices` are indices; of written answers, `targets` are texts, any of which will do. The requests
    of a task that scores whole texts have an empty context.
    """

    name: str
    fields: Mapping[str, Any]
    requests: tuple[tuple[str, str], ...]
    choices: tuple[str, ...] = ()
    right_choices: tuple[int, ...] = ()
    targets: tuple[str, ...] = ()
    is_rolling: bool = False


def items_of(task: Task) -> list[Item]:
    """Returns every document's requests, up to the task's limit; raises TaskError naming the record that doesn't fit.

    Raises CorpusError for records that can't be read.
    """
    documents = list(itertools.islice(task.documents.read(), task.limit))
    if not documents:
        message = f"{task.file}: the data of {task.name} holds no documents"
        raise TaskError(message)
    asking = _Asking(task)
    return [asking.item(record) for record in documents]


class _Asking:
    """Makes items of records; draws examples in the order of the documents."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._templates = _Templates(task)
        shots = task.shots
        self._chance = random.Random(shots.seed)
        self._pool: list[Record] = []
        if shots.samples is not None:
            self._pool = [
                Record(f"{task.file}: fewshot_config.samples[{index}]", fields)
                for index, fields in enumerate(shots.samples)
            ]
        elif shots.records is not None:
            self._pool = list(shots.records.read())
        needed = shots.count + shots.excludes_own
        if len(self._pool) < needed:
            message = (
                f"{task.file}: num_fewshot is {shots.count}, and there are {len(self._pool)} documents to draw them "
                f"from; {needed} are needed"
            )
            raise TaskError(message)

    def item(self, record: Record) -> Item:
        task, templates = self.task, self._templates
        if task.output_type == "loglikelihood_rolling":
            text = templates.target(record)
            if not isinstance(text, str) or not text:
                raise templates.wrong(record, "doc_to_target", text, "a text to score")
            return Item(record.name, record.fields, (("", text),), is_rolling=True)
        before = templates.text_of("description", task.description, record) if task.description else ""
        before += "".join(self._example(shot) for shot in self._drawn(record))
        question, choices, target = templates.question(record), templates.choices(record), templates.target(record)
        prefix = None if task.gen_prefix is None else templates.text_of("gen_prefix", task.gen_prefix, record)
        if isinstance(question, int):
            return self._several_questions(record, before, question, choices, target, prefix)
        context = before + question + self._prefixed(question, prefix)
        if task.output_type == "generate_until":
            targets = self._written(record, choices, target)
            return Item(record.name, record.fields, ((context, ""),), targets=targets)
        if task.output_type == "loglikelihood":
            if not isinstance(target, str) or not target:
                raise templates.wrong(record, "doc_to_target", target, "a text to score")
            return Item(record.name, record.fields, ((context, target),))
        requests = [(context, task.target_delimiter + choice) for choice in choices]
        if any(metric.name == "acc_mutual_info" for metric in task.metrics):
            requests += [("", task.target_delimiter + choice) for choice in choices]
        right = self._right(record, choices, target)
        return Item(record.name, record.fields, tuple(requests), tuple(choices), right)

    def _several_questions(
        self, record: Record, before: str, right: int, choices: list[str], target: Any, prefix: str | None
    ) -> Item:
        """Returns the item of a document whose choices are questions, all with the same continuation."""
        if not 0 <= right < len(choices):
            raise self._templates.wrong(record, "doc_to_text", right, f"the index of one of {len(choices)} choices")
        end = f"{self.task.target_delimiter}{target}"
        requests = tuple((before + choice + self._prefixed(choice, prefix, delimiter=""), end) for choice in choices)
        return Item(record.name, record.fields, requests, tuple(choices), (right,))

    def _right(self, record: Record, choices: Sequence[str], target: Any) -> tuple[int, ...]:
        found = []
        for one in target if isinstance(target, list) else [target]:
            index = choices.index(one) if isinstance(one, str) and one in choices else one
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(choices):
                valid = f"an index below {len(choices)}, or one of {', '.join(map(repr, choices[:6]))}"
                raise self._templates.wrong(record, "doc_to_target", one, valid)
            found.append(index)
        return tuple(found)

    def _written(self, record: Record, choices: list[str], target: Any) -> tuple[str, ...]:
        if choices:
            return tuple(choices[index] for index in self._right(record, choices, target))
        return tuple(map(str, target)) if isinstance(target, list) and target else (str(target),)

    def _drawn(self, record: Record) -> list[Record]:
        shots = self.task.shots
        if not shots.count:
            return []
        others = [shot for shot in self._pool if not (shots.excludes_own and shot.fields == record.fields)]
        if shots.first:
            drawn = others[: shots.count]
        elif shots.excludes_own:
            # One more than wanted: the own may be among them.
            drawn = self._chance.sample(self._pool, shots.count + 1)
            drawn = [shot for shot in drawn if shot.fields != record.fields][: shots.count]
            if len(drawn) < shots.count and len(others) >= shots.count:
                drawn = self._chance.sample(others, shots.count)
        else:
            drawn = self._chance.sample(self._pool, shots.count)
        if len(drawn) < shots.count:
            message = (
                f"{record.name}: num_fewshot is {shots.count}, and only {len(drawn)} documents differ from this one"
            )
            raise TaskError(message)
        return drawn

    def _example(self, shot: Record) -> str:
        """Returns a solved example with the delimiter after it."""
        task, templates = self.task, self._templates
        question, target = templates.question(shot), templates.target(shot)
        choices = templates.choices(shot)
        if isinstance(question, int):
            question = choices[question]
        elif choices and isinstance(target, int):
            target = choices[self._right(shot, choices, target)[0]]
        answer = str(target[0] if isinstance(target, list) and target else target)
        prefix = None if task.gen_prefix is None else templates.text_of("gen_prefix", task.gen_prefix, shot)
        if not prefix:
            return question + task.target_delimiter + answer + task.fewshot_delimiter
        joint = "" if prefix[-1:].isspace() or answer[:1].isspace() else " "
        return question + self._prefixed(question, prefix) + joint + answer + task.fewshot_delimiter

    def _prefixed(self, question: str, prefix: str | None, delimiter: str | None = None) -> str:
        """Returns what an answer begins with, after a delimiter where neither side has a space."""
        if not prefix:
            return ""
        has_space = not question or question[-1].isspace() or prefix[0].isspace()
        between = self.task.target_delimiter if delimiter is None else delimiter
        return prefix if has_space else between + prefix


class _Templates:
    """The templates of a task, over the fields of a record."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def wrong(self, record: Record, key: str, found: Any, valid: str) -> TaskError:
        """Returns the error of a template whose result isn't what the task needs."""
        shown = repr(found)
        return TaskError(f"{record.name}: {key} gives {shown[:200]}, expected {valid} ({self._task.file})")

    def question(self, record: Record) -> str | int:
        """Returns the question, or of a document whose choices are questions the index of the right one."""
        found = self._value("doc_to_text", self._task.doc_to_text, record)
        if self._task.doc_to_choice is None or isinstance(found, str):
            return str(found)
        if not isinstance(found, int):
            raise self.wrong(record, "doc_to_text", found, "a text")
        return found

    def target(self, record: Record) -> Any:
        """Returns what is right: a text, an index of a choice, or a list of either."""
        found = self._value("doc_to_target", self._task.doc_to_target, record)
        is_list = isinstance(found, str) and len(found) >= 2 and found[0] == "[" and found[-1] == "]"
        if is_list and self._task.doc_to_target not in record.fields:
            with contextlib.suppress(SyntaxError, ValueError):
                return ast.literal_eval(found)
        return found

    def choices(self, record: Record) -> list[str]:
        """Returns the choices; none for a task without them."""
        asked = self._task.doc_to_choice
        if asked is None:
            return []
        found: Any = list(asked.values()) if isinstance(asked, dict) else asked
        if isinstance(asked, str):
            found = record.fields.get(asked)
            if found is None:
                text = self.text_of("doc_to_choice", asked, record)
                try:
                    found = ast.literal_eval(text)
                except (SyntaxError, ValueError) as error:
                    raise self.wrong(record, "doc_to_choice", text, "a list of texts") from error
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            raise self.wrong(record, "doc_to_choice", found, "a list of texts, none of them empty")
        return found

    def _value(self, key: str, template: Any, record: Record) -> Any:
        if not isinstance(template, str):
            return template
        if template in record.fields:
            return record.fields[template]
        text = self.text_of(key, template, record)
        return int(text) if text.isdecimal() and self._task.doc_to_choice is not None else text

    def text_of(self, key: str, template: str, record: Record) -> str:
        """Returns a template's text, or that of the field it names; raises TaskError where it fails on a record."""
        if template in record.fields:
            return str(record.fields[template])
        if _FIELD.fullmatch(template) and key != "description":
            # As a template it would be a constant: a misspelt field would ask every document the same.
            near = did_you_mean(template, record.fields)
            message = (
                f"{record.name}: {key} of {self._task.file} names a field, {template!r}, that isn't there{near}; for "
                f"the text itself write \"{{{{'{template}'}}}}\""
            )
            raise TaskError(message)
        import jinja2

        try:
            return str(_compiled(template).render(**record.fields))
        except jinja2.TemplateSyntaxError as error:
            message = f"{self._task.file}: {key} is no template: {error}"
            raise TaskError(message) from error
        except Exception as error:
            why = str(error)
            name = re.search(r"'([^']+)' is undefined", why)
            near = did_you_mean(name[1], record.fields) if name else ""
            message = f"{record.name}: {key} of {self._task.file} fails: {type(error).__name__}: {why}{near}"
            raise TaskError(message) from error


@functools.lru_cache(maxsize=1024)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@functools.cache
def _environment() -> Any:
    try:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        message = 'tasks are templates of Jinja: pip install "kanawa-runtime[evaluate]"'
        raise TaskError(message) from error
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)

    def replaced(text: str, pattern: str, repl: str, count: int = 0) -> str:
        return re.sub(pattern, repl, text, count=count)

    environment.filters["regex_replace"] = replaced
    return environment
