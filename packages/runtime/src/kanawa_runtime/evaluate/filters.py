"""What is done to a written answer before it is scored; names and options as lm-eval's."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from kanawa.errors import did_you_mean

from kanawa_runtime.evaluate.task import FilterChain

_NUMBER = r"#### (\-?[0-9\.\,]+)"
_INVALID = "[invalid]"


def filtered(chain: FilterChain, answer: str) -> str:
    """Returns the answer after every function of a chain, in order."""
    for name, options in chain.steps:
        answer = _FUNCTIONS[name][0](answer, **options)
    return answer


def check_step(name: str, options: Mapping[str, Any]) -> str:
    """Returns what is wrong with a function of a chain and its options; "" where nothing is."""
    if name not in _FUNCTIONS:
        return f"there is no filter {name!r}{did_you_mean(name, _FUNCTIONS)}"
    allowed = _FUNCTIONS[name][1]
    for key, value in options.items():
        if key not in allowed:
            known = did_you_mean(key, allowed) if allowed else "; it has none"
            return f"the filter {name} has no option {key!r}{known}"
        if not isinstance(value, allowed[key]) or isinstance(value, bool):
            return f"{key} of the filter {name} is {value!r}, expected {allowed[key].__name__}"
    if "regex_pattern" in options:
        try:
            re.compile(options["regex_pattern"])
        except re.error as error:
            return f"regex_pattern {options['regex_pattern']!r} is no expression: {error}"
    return ""


def _regex(answer: str, regex_pattern: str = _NUMBER, group_select: int = 0, fallback: str = _INVALID) -> str:
    """Returns one of the matches, of several groups the first with text; `fallback` where there is none."""
    matches = re.findall(regex_pattern, answer)
    if not -len(matches) <= group_select < len(matches):
        return fallback
    match = matches[group_select]
    if isinstance(match, tuple):
        match = next((group for group in match if group), fallback)
    return str(match).strip()


def _same(answer: str) -> str:
    """Returns the answer: of several to a question the first is taken, and there is one."""
    return answer


_FUNCTIONS: dict[str, tuple[Callable[..., str], dict[str, type]]] = {
    "regex": (_regex, {"regex_pattern": str, "group_select": int, "fallback": str}),
    "take_first": (_same, {}),
    "remove_whitespace": (str.strip, {}),
    "lowercase": (str.lower, {}),
    "uppercase": (str.upper, {}),
}
