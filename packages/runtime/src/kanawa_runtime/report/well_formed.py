"""Records as they should be: a field of another type than it is written with is left out.

A log may be mended by hand, written by a newer version, or damaged; a report is wanted most of all then.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

#: What no count, time or size in a log exceeds; beyond it floats and dates fail.
_LARGEST = 2.0**63


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_number(value: Any) -> bool:
    """Whether it is a number, "nan" and "inf" included: a loss may be either."""
    return _is_finite(value) or (isinstance(value, float) and math.isnan(value)) or value in ("nan", "inf", "-inf")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _holds_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_finite, value.values()))


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _lists_dicts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_dict, value))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_FIELDS: dict[Callable[[Any], bool], str] = {
    _is_count: "attempt step total_steps start_step parameters trained_parameters chips cores used",
    _is_finite: (
        "clock time seconds blocking_seconds bytes model_flops_per_step peak_flops_per_chip memory_limit_bytes "
        "device_peak_bytes process_peak_bytes"
    ),
    _is_number: "loss tokens reward nats_per_byte trigram_nats_per_byte",
    _is_text: (
        "command working_directory processor text prompt error kernel operation problem outcome signal device_kind "
        "peak_flops_dtype peak_flops_source origin path run host devices python data_digest"
    ),
    _is_dict: "git plugins versions",
    _holds_numbers: "metrics loss_by_source tokens_by_source",
    _holds_counts: "parameters_by_module memory_per_device_bytes sections",
    _lists_dicts: "config_changes refused",
    _is_list: "reasons",
}
_CHECKS = {name: check for check, names in _FIELDS.items() for name in names.split()}


def well_formed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record without the fields that are not what they should be; unknown ones stay."""
    return {
        name: value for name, value in record.items() if name not in _CHECKS or value is None or _CHECKS[name](value)
    }
