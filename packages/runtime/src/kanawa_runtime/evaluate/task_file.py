"""Reading a task file: YAML with the keys of lm-eval's simple tasks, each of them checked.

The meaning of keys follows lm-eval 0.4 (`docs/task_guide.md` of EleutherAI/lm-evaluation-harness).
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from kanawa.errors import did_you_mean
from kanawa.guarded_read import guarded_bytes
from kanawa.local_path import local_path

from kanawa_runtime.data.records.files import RecordFiles
from kanawa_runtime.data.records.record import Records
from kanawa_runtime.evaluate.filters import check_step
from kanawa_runtime.evaluate.metrics import DEFAULT_METRICS, read_metric
from kanawa_runtime.evaluate.task import FilterChain, Generation, OutputType, Shots, Task, TaskError

_MOST_BYTES = 2**22
#: How far `include` goes.
_MOST_INCLUDED = 8
_OUTPUT_TYPES = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
#: What each key may hold.
_KEYS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "include": (str,),
    "dataset_path": (str,),
    "dataset_name": (str,),
    "dataset_kwargs": (dict,),
    "training_split": (str,),
    "validation_split": (str,),
    "test_split": (str,),
    "fewshot_split": (str,),
    "fewshot_config": (dict,),
    "fewshot_seed": (int,),
    "num_fewshot": (int,),
    "output_type": (str,),
    "doc_to_text": (str, int),
    "doc_to_target": (str, int, list),
    "doc_to_choice": (str, list, dict),
    "description": (str,),
    "target_delimiter": (str,),
    "fewshot_delimiter": (str,),
    "gen_prefix": (str,),
    "generation_kwargs": (dict,),
    "metric_list": (list,),
    "filter_list": (list,),
    "repeats": (int,),
    "limit": (int,),
}
#: Keys that say nothing about requests or scores.
_NOTES = frozenset(
    {"task_alias", "tag", "group", "metadata", "should_decontaminate", "doc_to_decontamination_query", "unsafe_code"}
)
#: Keys of lm-eval that need Python of its own.
_PYTHON = frozenset({"process_docs", "process_results", "custom_dataset", "use_prompt", "doc_to_image", "doc_to_audio"})
_KINDS = {str: "text", int: "a number", list: "a list", dict: "a mapping", float: "a number", bool: "true or false"}
#: Names of `datasets` for files; ours go by the files' own endings.
_LOADERS = frozenset({"json", "csv", "parquet", "arrow", "text"})
_TOKEN_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = {"temperature": (int, float), "top_p": (int, float), "top_k": (int,), "min_p": (int, float)}


def read_task(path: str | Path, *, limit: int | None = None) -> Task:
    """Returns the task of a file; `limit` replaces the file's own. Raises TaskError, CorpusError for its data's files.

    Paths of data are relative to the folder of the file, or where nothing is there, to the working folder.
    """
    file = local_path(str(path), "--tasks")
    record = _included(file, ())
    for key, value in record.items():
        _check_key(file, key, value)
    output_type = record.get("output_type", "generate_until")
    if output_type not in _OUTPUT_TYPES:
        _refuse(file, f"output_type is {output_type!r}", did_you_mean(output_type, _OUTPUT_TYPES))
    needed = [] if output_type == "loglikelihood_rolling" else ["doc_to_text"]
    needed += ["doc_to_target", *(["doc_to_choice"] if output_type == "multiple_choice" else [])]
    missing = [key for key in ("task", "dataset_path", *needed) if record.get(key) is None]
    if missing:
        _refuse(file, f"{', '.join(missing)} missing; a task of output_type {output_type} needs {', '.join(needed)}")
    if record.get("repeats", 1) != 1:
        _refuse(file, f"repeats is {record['repeats']}, and each question is asked once; leave it out")
    splits = _Splits(file, record)
    delimiter = record.get("fewshot_delimiter", "\n\n")
    return Task(
        name=record["task"],
        file=file,
        output_type=cast(OutputType, output_type),
        documents=splits.evaluated(),
        doc_to_text=record.get("doc_to_text", ""),
        doc_to_target=record["doc_to_target"],
        doc_to_choice=record.get("doc_to_choice"),
        metrics=tuple(
            read_metric(entry, output_type, lambda text: _refuse(file, text))
            for entry in record.get("metric_list") or [{"metric": name} for name in DEFAULT_METRICS[output_type]]
        ),
        filters=tuple(_filters(file, record.get("filter_list") or [])),
        generation=read_generation(file, record.get("generation_kwargs") or {}, delimiter)
        if output_type == "generate_until"
        else None,
        shots=_shots(file, record, splits),
        description=record.get("description", ""),
        target_delimiter=record.get("target_delimiter", " "),
        fewshot_delimiter=delimiter,
        gen_prefix=record.get("gen_prefix"),
        limit=limit if limit is not None else record.get("limit"),
    )


def _refuse(file: Path, found: str, valid: str = "") -> NoReturn:
    message = f"{file}: {found}{valid}"
    raise TaskError(message)


def _included(file: Path, outer: tuple[Path, ...]) -> dict[str, Any]:
    """Returns the mapping of a file over that of the file it includes."""
    if file in outer or len(outer) == _MOST_INCLUDED:
        _refuse(file, "include leads back to a file that includes it")
    record = _mapping(file)
    base = record.pop("include", None)
    if base is None:
        return record
    if not isinstance(base, str):
        _refuse(file, f"include is {base!r}, expected the name of one file")
    return {**_included(file.parent / base, (*outer, file)), **record}


def _mapping(file: Path) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        message = 'task files are YAML: pip install "kanawa-runtime[evaluate]"'
        raise TaskError(message) from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """The safe loader, with an error of ours for Python."""

    def function(loader: Any, node: Any) -> NoReturn:
        del loader
        where = f"line {node.start_mark.line + 1}"
        text = f"{where} names a Python function, {node.value!r}, and a task file holds templates only"
        _refuse(file, text, "; write it as a Jinja template, or the answers' score as metric: module:function")

    Loader.add_constructor("!function", function)
    try:
        record = yaml.load(guarded_bytes(file, most=_MOST_BYTES), Loader)  # noqa: S506 - derived from the safe one
    except yaml.YAMLError as error:
        message = f"{file}: not YAML: {error}"
        raise TaskError(message) from error
    except OSError as error:
        message = f"{file}: {error.strerror}; give the path of a task file, such as tasks/words.yaml"
        raise TaskError(message) from error
    if not isinstance(record, dict) or not all(isinstance(key, str) for key in record):
        _refuse(file, f"holds a {type(record).__name__}, expected a mapping of keys such as task and doc_to_text")
    return record


def _check_key(file: Path, key: str, value: Any) -> None:
    if key in _NOTES or value is None:
        return
    if key in _PYTHON:
        _refuse(file, f"{key} needs Python of lm-eval's own", ": write it as a template, or prepare the data before")
    if key not in _KEYS:
        _refuse(file, f"there is no key {key!r}", did_you_mean(key, _KEYS))
    kinds = _KEYS[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        _refuse(file, f"{key} is {value!r}, expected {' or '.join(_KINDS[kind] for kind in kinds)}")


@dataclasses.dataclass(frozen=True)
class _Splits:
    """The files of each split, and which split is evaluated."""

    file: Path
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The split that is evaluated: that of the test, else of the validation."""
        return str(self.record.get("test_split") or self.record.get("validation_split") or "test")

    def evaluated(self) -> Records:
        """Returns the records that are asked about."""
        return self.of(self.name)

    def of(self, split: str) -> Records:
        """Returns the records of a split; raises TaskError, with the choices, where there are no files of it."""
        files = self._files()
        if split not in files:
            _refuse(self.file, f"there are no files of the split {split!r}", did_you_mean(split, files))
        here = self.file.parent
        chosen = [path if Path(path).is_absolute() else self._place(here, path) for path in files[split]]
        kind = RecordFiles.Config(files=tuple(chosen), root=str(here.resolve()))
        records: Records = kind.build()
        return records

    def _place(self, here: Path, path: str) -> str:
        # lm-eval reads them from the working folder.
        beside = here.resolve() / path
        return path if beside.exists() or not Path(path).exists() else str(Path(path).resolve())

    def _files(self) -> dict[str, list[str]]:
        path = self.record["dataset_path"]
        given = (self.record.get("dataset_kwargs") or {}).get("data_files")
        if given is None:
            if path in _LOADERS:
                _refuse(self.file, f"dataset_path is {path!r} without dataset_kwargs.data_files: name the files there")
            if "/" not in path and "." not in path:
                _refuse(
                    self.file,
                    f"dataset_path is {path!r}, a dataset of a hub, and tasks read files: write it to a file once and "
                    "give its path; a task file of two lines, include: and dataset_path:, leaves this one as it is",
                )
            given = path
        by_split = given if isinstance(given, dict) else {self.name: given}
        listed = {str(split): [files] if isinstance(files, str) else files for split, files in by_split.items()}
        for split, files in listed.items():
            if not isinstance(files, list) or not files or not all(isinstance(one, str) for one in files):
                _refuse(self.file, f"the files of the split {split!r} are {files!r}, expected a path or a list of them")
        return listed


def _shots(file: Path, record: Mapping[str, Any], splits: _Splits) -> Shots:
    count, config = record.get("num_fewshot") or 0, record.get("fewshot_config") or {}
    seed = record.get("fewshot_seed", 1234)
    allowed = ("sampler", "split", "samples")
    for key in config:
        if key not in allowed:
            _refuse(file, f"there is no key fewshot_config.{key}", did_you_mean(str(key), allowed))
    sampler = config.get("sampler", "default")
    if sampler not in ("default", "first_n"):
        _refuse(file, f"fewshot_config.sampler is {sampler!r}", did_you_mean(str(sampler), ("default", "first_n")))
    if count < 0:
        _refuse(file, f"num_fewshot is {count}, expected 0 or more")
    if not count:
        return Shots()
    samples = config.get("samples")
    if samples is not None:
        if not isinstance(samples, list) or not all(isinstance(one, dict) for one in samples):
            _refuse(file, "fewshot_config.samples is no list of mappings, each with the fields of a document")
        return Shots(count=count, seed=seed, first=sampler == "first_n", samples=tuple(samples))
    named = (config.get("split"), *(record.get(f"{kind}_split") for kind in ("fewshot", "training", "validation")))
    split = next((one for one in named if one), splits.name)
    own = split == splits.name
    return Shots(count=count, seed=seed, first=sampler == "first_n", records=splits.of(split), excludes_own=own)


def _filters(file: Path, entries: list[Any]) -> list[FilterChain]:
    chains = []
    for index, entry in enumerate(entries):
        where = f"filter_list[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("filter"), list) or not entry["filter"]:
            _refuse(file, f"{where} is {entry!r}, expected a mapping with name and filter, a list of functions")
        steps = []
        for step in entry["filter"]:
            if not isinstance(step, dict) or not isinstance(step.get("function"), str):
                _refuse(file, f"{where}.filter holds {step!r}, expected a mapping with function: NAME")
            options = {key: value for key, value in step.items() if key != "function"}
            problem = check_step(step["function"], options)
            if problem:
                _refuse(file, f"{where}: {problem}")
            steps.append((step["function"], options))
        chains.append(FilterChain(name=str(entry.get("name", "none")), steps=tuple(steps)))
    names = [chain.name for chain in chains]
    if len(set(names)) < len(names):
        _refuse(file, f"filter_list has two entries of one name, {', '.join(names)}; name each")
    return chains


def read_generation(file: Path, options: Mapping[str, Any], delimiter: str) -> Generation:
    """Returns what `generation_kwargs` ask for; `delimiter` ends an answer where they name nothing."""
    asked = dict(options)
    until = asked.pop("until", None)
    texts = [delimiter] if until is None else [until] if isinstance(until, str) else until
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        _refuse(file, f"generation_kwargs.until is {until!r}, expected a text or a list of them")
    fields: dict[str, Any] = {"until": tuple(text for text in texts if text)}
    is_drawn = asked.pop("do_sample", None)
    limits = [asked.pop(key) for key in _TOKEN_LIMITS if key in asked]
    if limits:
        fields["max_tokens"] = _number(file, "the most tokens of an answer", limits[0], (int,), lambda n: n >= 1)
    for key, value in asked.items():
        if key not in _SAMPLING:
            known = (*_SAMPLING, "until", "do_sample", *_TOKEN_LIMITS)
            _refuse(file, f"there is no key generation_kwargs.{key}", did_you_mean(str(key), known))
        fields[key] = _number(file, f"generation_kwargs.{key}", value, _SAMPLING[key], lambda n: n >= 0)
    if is_drawn is False or (is_drawn is None and "temperature" not in fields):
        fields["temperature"] = 0.0
    elif is_drawn and not fields.get("temperature", 1.0):
        _refuse(file, "generation_kwargs.do_sample is true and temperature 0: raise it, or leave do_sample out")
    else:
        fields.setdefault("temperature", 1.0)
    return Generation(**fields)


def _number(file: Path, what: str, value: Any, kinds: tuple[type, ...], is_right: Callable[[Any], bool]) -> Any:
    if isinstance(value, bool) or not isinstance(value, kinds) or not is_right(value):
        _refuse(file, f"{what} is {value!r}, expected a number in its range")
    return value
