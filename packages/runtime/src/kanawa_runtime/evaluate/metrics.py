"""Metrics of one document, and of all of a task: names, options and sums as lm-eval's, with standard errors."""

import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from kanawa.config import resolve_callable
from kanawa.errors import ConfigError, did_you_mean

from kanawa_runtime.evaluate.items import Item
from kanawa_runtime.evaluate.task import TaskError, TaskMetric

#: What a document contributes: a number, or a number and its weight.
Value = float | tuple[float, float]

#: Resamples for the standard error of what is no mean, and the seed they are drawn with.
RESAMPLES, SEED = 1000, 1234


class Likelihood(NamedTuple):
    """The log-probability of a continuation in nats, and whether each of its tokens is the likeliest."""

    logprob: float
    is_greedy: bool


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values[:, 0]))


def _median(values: np.ndarray) -> float:
    return float(np.sort(values[:, 0])[len(values) // 2])


def _per_weight(values: np.ndarray) -> float:
    return float(values[:, 0].sum() / values[:, 1].sum())


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700.0))


#: Functions of [documents, (value, weight)].
_AGGREGATIONS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": _mean,
    "median": _median,
    "perplexity": lambda values: _exp(-_mean(values)),
    "weighted_perplexity": lambda values: _exp(-_per_weight(values)),
    "bits_per_byte": lambda values: -_per_weight(values) / math.log(2),
}

#: By output type, each metric's aggregation and whether higher is better.
_METRICS: dict[str, dict[str, tuple[str, bool]]] = {
    "multiple_choice": {
        "acc": ("mean", True),
        "acc_norm": ("mean", True),
        "acc_bytes": ("mean", True),
        "acc_mutual_info": ("mean", True),
        "exact_match": ("mean", True),
    },
    "loglikelihood": {"perplexity": ("perplexity", False), "acc": ("mean", True)},
    "loglikelihood_rolling": {
        "word_perplexity": ("weighted_perplexity", False),
        "byte_perplexity": ("weighted_perplexity", False),
        "bits_per_byte": ("bits_per_byte", False),
    },
    "generate_until": {"exact_match": ("mean", True)},
}
#: What is measured where a file lists no metrics.
DEFAULT_METRICS = {
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "generate_until": ("exact_match",),
}
_EXACT_OPTIONS = {"regexes_to_ignore": list, "ignore_case": bool, "ignore_punctuation": bool, "ignore_numbers": bool}


def read_metric(entry: Any, output_type: str, refuse: Callable[[str], NoReturn]) -> TaskMetric:
    """Returns one entry of `metric_list`; calls `refuse` with what is wrong with it."""
    known = _METRICS[output_type]
    if not isinstance(entry, dict) or not isinstance(entry.get("metric"), str):
        refuse(f"metric_list holds {entry!r}, expected a mapping with metric: NAME")
    name = entry["metric"]
    is_function = ":" in name and output_type == "generate_until"
    if not is_function and name not in known:
        own = ", or module:function" if output_type == "generate_until" else ""
        refuse(f"{output_type} has no metric {name!r}{did_you_mean(name, known)}{own}")
    if is_function:
        try:
            resolve_callable(name)
        except ConfigError as error:
            refuse(f"metric {name}: {error}")
    aggregation, higher = ("mean", True) if is_function else known[name]
    allowed: Mapping[str, type] = _EXACT_OPTIONS if name == "exact_match" and output_type == "generate_until" else {}
    options = {}
    for key, value in entry.items():
        if key in ("metric", "aggregation", "higher_is_better", "hf_evaluate"):
            continue
        if key not in allowed:
            refuse(f"the metric {name} has no option {key!r}{did_you_mean(str(key), allowed)}")
        if not isinstance(value, allowed[key]):
            refuse(f"{key} of the metric {name} is {value!r}, expected {allowed[key].__name__}")
        options[key] = value
    asked = entry.get("aggregation", aggregation)
    choices = {aggregation, "mean", "median"} if aggregation in ("mean", "median") else {aggregation}
    if asked not in choices:
        refuse(f"aggregation of {name} is {asked!r}{did_you_mean(str(asked), choices)}")
    is_better = entry.get("higher_is_better", higher)
    if not isinstance(is_better, bool):
        refuse(f"higher_is_better of {name} is {is_better!r}, expected true or false")
    return TaskMetric(name=name, aggregation=asked, higher_is_better=is_better, options=options)


# --- one document ----------------------------------------------------------------------------------------------


def likelihood_values(metrics: Sequence[TaskMetric], item: Item, answers: Sequence[Likelihood]) -> dict[str, Value]:
    """Returns each metric of a document whose requests were scored, a likelihood for each."""
    names = {metric.name for metric in metrics}
    if item.choices:
        values = _of_choices(item, answers)
    elif item.is_rolling:
        (total, _), text = answers[0], item.requests[0][1]
        words, num_bytes = float(len(re.split(r"\s+", text))), float(len(text.encode()))
        by_byte: Value = (total, num_bytes)
        values = {"word_perplexity": (total, words), "byte_perplexity": by_byte, "bits_per_byte": by_byte}
    else:
        values = {"perplexity": answers[0].logprob, "acc": float(answers[0].is_greedy)}
    return {name: value for name, value in values.items() if name in names}


def _of_choices(item: Item, answers: Sequence[Likelihood]) -> dict[str, Value]:
    choices, right = item.choices, item.right_choices
    logprobs = np.asarray([one.logprob for one in answers[: len(choices)]])
    sizes = np.asarray([float(len(choice)) for choice in choices])
    in_bytes = np.asarray([float(len(choice.encode())) for choice in choices])
    values: dict[str, Value] = {
        "acc": float(int(np.argmax(logprobs)) in right),
        "acc_norm": float(int(np.argmax(logprobs / sizes)) in right),
        "acc_bytes": float(int(np.argmax(logprobs / in_bytes)) in right),
        "exact_match": float(any(answers[index].is_greedy for index in right)),
    }
    alone = answers[len(choices) :]
    if alone:
        gained = logprobs - np.asarray([one.logprob for one in alone])
        values["acc_mutual_info"] = float(int(np.argmax(gained)) in right)
    return values


def text_values(metrics: Sequence[TaskMetric], item: Item, answer: str) -> dict[str, Value]:
    """Returns each metric of a document whose answer was written; of several right ones the best counts."""
    values: dict[str, Value] = {}
    for metric in metrics:
        if metric.name == "exact_match":
            values[metric.name] = max(_exact(answer, target, **metric.options) for target in item.targets)
        else:
            values[metric.name] = max(_by_function(metric.name, answer, target, item) for target in item.targets)
    return values


def _by_function(name: str, answer: str, target: str, item: Item) -> float:
    try:
        value = float(resolve_callable(name)(answer, target, item.fields))
    except Exception as error:
        message = f"the metric {name} raised {type(error).__name__}: {error}; for {item.name}"
        raise TaskError(message) from error
    if not math.isfinite(value):
        message = f"the metric {name} returned {value} for {item.name}; expected a finite number"
        raise TaskError(message)
    return value


def _exact(
    answer: str,
    target: str,
    regexes_to_ignore: Sequence[str] = (),
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> float:
    def normal(text: str) -> str:
        for pattern in regexes_to_ignore:
            text = re.sub(pattern, "", text)
        text = text.lower() if ignore_case else text
        left_out = (string.punctuation if ignore_punctuation else "") + (string.digits if ignore_numbers else "")
        return text.translate(str.maketrans("", "", left_out))

    return float(normal(answer) == normal(target))


# --- all documents -----------------------------------------------------------------------------------------------


def _as_array(values: Sequence[Value]) -> np.ndarray:
    return np.asarray([value if isinstance(value, tuple) else (value, 1.0) for value in values], np.float64)


def aggregate(values: Sequence[Value], aggregation: str) -> float:
    """Returns the task's number from those of its documents."""
    return _AGGREGATIONS[aggregation](_as_array(values))


def standard_error(values: Sequence[Value], aggregation: str) -> float | None:
    """Returns the standard error: of a mean by its formula, else of 1,000 resamples; None of fewer than two values."""
    array = _as_array(values)
    if len(array) < 2:
        return None
    if aggregation == "mean":
        return float(np.std(array[:, 0], ddof=1) / math.sqrt(len(array)))
    return float(np.std(resampled(array, aggregation, SEED), ddof=1))


def resampled(values: np.ndarray, aggregation: str, seed: int) -> np.ndarray:
    """Returns the number of each of 1,000 draws of as many documents, with replacement; the same for equal sizes.

    `values` is [documents, 2], as are those of another model on the same documents: both then see the same draws.
    """
    chance = np.random.default_rng(seed)
    function = _AGGREGATIONS[aggregation]
    draws = (chance.integers(0, len(values), len(values)) for _ in range(RESAMPLES))
    return np.asarray([function(values[draw]) for draw in draws])


def paired_difference(
    first: Sequence[Value], second: Sequence[Value], aggregation: str
) -> tuple[float, float | None, float | None]:
    """Returns the second minus the first, and the ends of its 95 % interval; None of fewer than two documents.

    Of a mean it is the normal interval of the differences by document; else the 2.5 and 97.5 percentiles of 1,000
    draws of the documents, the same draws for both (paired bootstrap: Efron and Tibshirani 1993, section 13.3).
    """
    one, other = _as_array(first), _as_array(second)
    apart = _AGGREGATIONS[aggregation](other) - _AGGREGATIONS[aggregation](one)
    if len(one) < 2:
        return apart, None, None
    if aggregation == "mean":
        error = float(np.std(other[:, 0] - one[:, 0], ddof=1) / math.sqrt(len(one)))
        return apart, apart - 1.959964 * error, apart + 1.959964 * error
    draws = resampled(other, aggregation, SEED) - resampled(one, aggregation, SEED)
    low, high = np.percentile(draws, [2.5, 97.5])
    return apart, float(low), float(high)
