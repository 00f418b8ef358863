"""Whether a batch script would do what its options say, without a Slurm: each option, the exports, then the body."""

import re
import shlex
import string
from collections.abc import Generator, Iterator

from kanawa_runtime.launch.slurm.script import SCRIPT, SETUP

_COUNT = r"[1-9]\d*"
_WORD = r"[^\s\"'#%\\]+"
#: What we ask sbatch for, and how each is written; a None has no value.
_OPTIONS = {
    "job-name": r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?",
    "nodes": _COUNT,
    "ntasks-per-node": _COUNT,
    "output": r"/[^\s\"'#\\]*/slurm-%j\.log",
    "open-mode": "append",
    "signal": rf"TERM@{_COUNT}",
    "requeue": None,
    "time": r"(\d+-)?\d+(:\d\d){0,2}",
    "partition": _WORD,
    "account": _WORD,
    "qos": _WORD,
    "priority": r"\d+",
    "constraint": _WORD,
    "cpus-per-task": _COUNT,
    "mem": r"\d+[KMGT]?",
    "gpus-per-node": _COUNT,
    "exclusive": None,
    "no-kill": None,
}
_REQUIRED = ("job-name", "nodes", "ntasks-per-node", "output", "open-mode", "signal", "requeue")
_EXPORT = re.compile(r"export ([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def script_problems(text: str, further: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields what is wrong with a script; `further` are options that the user gave, which sbatch alone can judge."""
    head, _, rest = text.partition("\n\n")
    shebang, *lines = head.split("\n")
    if shebang != "#!/bin/bash":
        yield f"line 1 is {shebang!r}, expected '#!/bin/bash'"
    exports, mark, after = rest.partition(f"{SETUP}\n")
    # What the user prepares machines with stands before the body.
    parts = _BODY.fullmatch(after[max(0, after.find("\nhome=") + 1) :]) if mark else None
    options = yield from _options(lines, further)
    variables = yield from _exports(exports)
    if parts is None:
        yield "the body isn't the one that keeps a gang going; render it again"
        return
    yield from _between(options, variables, {name: value or "" for name, value in parts.groupdict().items()})


def _options(lines: list[str], further: tuple[str, ...]) -> Generator[str, None, dict[str, str]]:
    options: dict[str, str] = {}
    for line in lines:
        option = line.removeprefix("#SBATCH --")
        if option == line:
            yield f"{line!r} is no option; expected '#SBATCH --name=value'"
            continue
        if f"--{option}" in further:
            continue
        name, equals, value = option.partition("=")
        pattern = _OPTIONS.get(name, "")
        if name not in _OPTIONS:
            yield f"option --{name}: sbatch isn't asked for that here; give it with --option 'options=[...]'"
        elif name in options:
            yield f"option --{name} is there twice"
        elif pattern is None if equals else pattern is not None:
            yield f"option --{name} {'has' if equals else 'lacks'} a value"
        elif pattern is not None and not re.fullmatch(pattern, value):
            yield f"option --{name}={value}: expected {pattern}"
        options[name] = value
    yield from (f"option --{name} is missing" for name in _REQUIRED if name not in options)
    return options


def _exports(text: str) -> Generator[str, None, dict[str, str]]:
    variables: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        match = _EXPORT.fullmatch(line)
        try:
            words = shlex.split(match[2]) if match else ["", ""]
        except ValueError:
            words = ["", ""]
        if match is None or len(words) > 1:
            yield f"{line!r} exports nothing; expected export NAME=VALUE, the value quoted"
        elif match[1] in variables:
            yield f"{match[1]} is exported twice"
        else:
            variables[match[1]] = "".join(words)
    return variables


def _between(options: dict[str, str], variables: dict[str, str], parts: dict[str, str]) -> Iterator[str]:
    """Yields where numbers and names that stand in several places differ."""
    counts = (options.get("nodes", ""), parts["hosts"], parts["tasks"])
    nodes, hosts, tasks = (int(count) if count.isdigit() else 0 for count in counts)
    if nodes < hosts or (nodes > hosts) != ("no-kill" in options):
        yield f"--nodes={nodes}, and srun starts on {hosts}: those beyond are spares, which need --no-kill"
    each = options.get("ntasks-per-node", "")
    if each.isdigit() and tasks != hosts * int(each):
        yield f"srun starts {tasks} tasks, {hosts} nodes of --ntasks-per-node={each} have {hosts * int(each)}"
    flag = re.search(r"--processes (\d+)", parts["quoted"])
    if flag and int(flag[1]) != tasks:
        yield f"--processes {flag[1]}, but srun starts {tasks} tasks"
    if options.get("signal") != f"TERM@{parts['grace']}":
        yield f"--signal={options.get('signal')}, and the gang has {parts['grace']} s to save"
    try:
        home = "".join(shlex.split(parts["home"]))
    except ValueError:
        home = ""
    if options.get("output") != f"{home}/slurm-%j.log":
        yield f"--output={options.get('output')} isn't in {home}, where the script keeps its codes"
    if variables.get("KANAWA_JOB") != options.get("job-name"):
        yield f"KANAWA_JOB is {variables.get('KANAWA_JOB')!r}, the job's name {options.get('job-name')!r}"
    for name in ("retries", "settle", "grace", "ports", "span", "stopped", "backoff", "most"):
        if not parts[name].isdigit():
            yield f"{name} is {parts[name]!r} in the body, expected a number"


def _body_pattern() -> re.Pattern[str]:
    """Returns what matches the body with anything in the places that a job fills, the same in all of them."""
    seen: set[str] = set()
    pattern = ""
    for text, field, _, _ in string.Formatter().parse(SCRIPT):
        pattern += re.escape(text)
        if field is not None:
            wide = ".*" if field == "quoted" else "[^\\n]*"
            pattern += f"(?P={field})" if field in seen else f"(?P<{field}>{wide})"
            seen.add(field)
    return re.compile(pattern, re.DOTALL)


_BODY = _body_pattern()
