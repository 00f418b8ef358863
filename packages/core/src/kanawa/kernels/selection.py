"""Ranks the installed kernels for one call of an operation, and says why the others were refused.

Only kernels whose name carries the platform (or "any") are imported: no host loads another platform's code.
"""

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kanawa.errors import KernelError, PluginError, UsageError, did_you_mean
from kanawa.kernels.choice import KernelChoice
from kanawa.kernels.operation import Kernel, Operation, Tuning
from kanawa.kernels.platform import current_platform
from kanawa.kernels.verdict import SUPPORTED, refuse
from kanawa.plugins import host
from kanawa.plugins.devices import OWN, device_spec_of_kind
from kanawa.plugins.discovery import own_packages

if TYPE_CHECKING:
    from kanawa.arrays.plan import KernelPolicy, KernelUse
    from kanawa.kernels.verdict import Verdict
    from kanawa.plugins import ComponentState, DeviceSpec


class PinError(KernelError, UsageError):
    """A kernel that the plan pins can't be used; the command or the config that pins it has to change."""


@dataclass(frozen=True)
class Selection:
    """A choice and its kernel."""

    kernel: Kernel
    choice: KernelChoice


@dataclass(frozen=True)
class _Question:
    """All that a selection depends on, hashable: the key of its cache."""

    operation: Operation
    problem: Any
    split_error: str
    platform: str
    device: "DeviceSpec | None"
    policy: "KernelPolicy"
    installed: tuple["ComponentState", ...]
    #: Whether the program is for devices that aren't this process's.
    described: bool = False

    @property
    def pins(self) -> tuple[str, ...]:
        """The kernels that the plan requires of this operation, one of them."""
        return tuple(name for operation, name in self.policy.pins if operation == self.operation.name)


def select(operation: Operation, problem: Any, split_error: str = "") -> Selection:
    """Returns the best installed kernel for a local problem on the current platform.

    Order: pins of the plan in force, what this run chose before, what was measured to be fastest on this device,
    kernels for this platform before general ones, priority, name.
    `split_error` says why operands can't be split over the mesh, which rules out local kernels.
    Raises KernelError where a pinned kernel can't be used, none supports the problem, two distributions tie,
    or a fused kernel is required and none applies.
    """
    return _answer(_question(operation, problem, split_error))


def _question(operation: Operation, problem: Any, split_error: str) -> _Question:
    from kanawa.arrays.plan import current_plan

    platform, kind = current_platform()
    plan = current_plan()
    prefixes = tuple(f"{operation.name}.{p}." for p in (platform, "any"))
    installed = tuple(state for state in host().components("kernels") if state.name.startswith(prefixes))
    return _Question(
        operation=operation,
        problem=problem,
        split_error=split_error,
        platform=platform,
        device=None if kind is None else device_spec_of_kind(kind),
        policy=plan.kernels,
        installed=installed,
        described=plan.platform is not None,
    )


def supporting_kernels(operation: str, problem: Any) -> list[Kernel]:
    """Returns the installed kernels that support a local problem on the current platform, the best ranked first."""
    question = _question(Operation(operation, {}, ()), problem, "")
    return [kernel for _, kernel in _askable(question) if kernel.verdict(problem, question.device)]


def has_alternatives(operation: Operation, reference: str, split_error: str = "") -> bool:
    """Returns whether a kernel other than the reference may be chosen on the current platform for some problem."""
    return any(state.name != reference for state, _ in _askable(_question(operation, None, split_error)))


def preferred_problem(operation: Operation, problem: Any, split_error: str = "") -> Any:
    """Returns the problem that the best ranked kernel would rather compute, and can; see `Kernel.preferred`."""
    question = _question(operation, problem, split_error)
    for state, kernel in _askable(question):
        if question.pins and not {state.name, state.key} & {*question.pins}:
            continue
        preferred = kernel.preferred(problem, question.device)
        if kernel.verdict(preferred, question.device):
            return preferred
    return problem


def _askable(question: _Question) -> list[tuple["ComponentState", Kernel]]:
    """Returns the kernels that may be asked about problems here, the best ranked first."""
    loaded = ((state, _loaded(question, state)[0]) for state in question.installed)
    return sorted(((state, kernel) for state, kernel in loaded if kernel is not None), key=_rank)


@functools.lru_cache(maxsize=1024)
def _answer(question: _Question) -> Selection:
    refused: list[tuple[str, str]] = []
    supporting: list[tuple[ComponentState, Kernel]] = []
    for state in question.installed:
        kernel, verdict = _ask(question, state)
        if kernel is not None and verdict.ok:
            supporting.append((state, kernel))
        else:
            refused.append((state.name, verdict.reason))
    # A config's pin beats what the run recorded, which beats what was measured, which beats the ranking.
    recorded, measured = _use(question, question.policy.recorded), _use(question, question.policy.measured)
    note = ""
    if question.pins:
        best = _pinned(question, supporting, refused)
        if recorded.kernel not in ("", best.name):
            note = f"pinned by the config; this run had {recorded.kernel}"
    elif recorded.kernel:
        best, note = _as_recorded(question, recorded.kernel, supporting, refused)
    else:
        fastest = _as_measured(question, measured.kernel, supporting)
        best, note = (fastest, "") if fastest else _best(question, supporting, refused)
    # A run keeps the sizes it began with: others round otherwise.
    use = next((use for use in (recorded, measured) if use.kernel == best.name), _Use())
    tuning, unknown = _offered(question, best, use.tuning)
    price = best.verdict(question.problem, question.device).reason
    note = "; ".join(each for each in (note, unknown, price) if each)
    if question.policy.require_fused:
        _check_fused(question, best, refused)
    choice = KernelChoice(
        operation=question.operation.name,
        problem=question.problem.describe(),
        kernel=best.name,
        refused=tuple(refused),
        note=note,
        matmul_flops=question.problem.matmul_flops,
        tuning=tuning,
        fallback=_falls_back(question, best),
        local_problem=question.problem,
    )
    if question.policy.survey:
        return Selection(_stand_in(best, supporting), choice)
    return Selection(tuned(best, tuning), choice)


def _stand_in(best: Kernel, supporting: list[tuple["ComponentState", Kernel]]) -> Kernel:
    """Returns a general kernel, which traces anywhere, in place of one whose platform's libraries may be missing."""
    general = (item for item in sorted(supporting, key=_rank) if item[0].name.split(".")[1] == "any")
    return next((kernel for _, kernel in general), best)


@functools.lru_cache(maxsize=256)
def tuned(kernel: Kernel, tuning: Tuning) -> Kernel:
    """Returns the kernel with a tuning, always the same instance: its identity is static data of a custom_vjp."""
    if not tuning:
        return kernel
    tuned = copy.copy(kernel)
    tuned.tuning = tuning
    return tuned


def _ask(question: _Question, state: "ComponentState") -> tuple[Kernel | None, "Verdict"]:
    """Returns the kernel, if it can be loaded, and its verdict."""
    kernel, refusal = _loaded(question, state)
    return (kernel, refusal) if kernel is None else (kernel, kernel.verdict(question.problem, question.device))


def _loaded(question: _Question, state: "ComponentState") -> tuple[Kernel | None, "Verdict"]:
    """Returns a kernel that may be asked about problems here, or None and why not."""
    # A name that two distributions offer is in conflict, but each can be loaded and pinned by its full key.
    if not state.state.usable:
        return None, refuse(f"{state.state}: {state.reason}")
    try:
        kernel = _instance(state.key, state.value)
    except PluginError as error:
        if state.distribution not in own_packages():
            host().warn(str(error))
        return None, refuse(str(error).splitlines()[0])
    if kernel.platforms and question.platform not in kernel.platforms:
        return None, refuse(f"runs on {', '.join(kernel.platforms)}, not {question.platform}")
    if kernel.local and question.split_error:
        return None, refuse(question.split_error)
    # In a survey another kernel replaces it, so that nothing of it is called.
    if kernel.in_process and question.described and not question.policy.survey:
        return None, refuse("it runs in the process that traces it, and this program is for devices elsewhere")
    return kernel, SUPPORTED


@functools.lru_cache(maxsize=256)
def _instance(key: str, value: str) -> Kernel:
    """Returns the one instance of a kernel class: its identity is static data of a custom_vjp."""
    from kanawa.plugins import component

    kernel: Kernel = component("kernels", key)()
    return kernel


def _rank(item: tuple["ComponentState", Kernel]) -> tuple[bool, int, bool, str, str]:
    """Special kernels, then priority; of equals Kanawa's own, then by the names of distribution and kernel."""
    state, kernel = item
    general = state.name.split(".")[1] == "any"
    return general, -kernel.priority, state.distribution not in own_packages(), state.distribution, state.name


def _best(
    question: _Question,
    supporting: list[tuple["ComponentState", Kernel]],
    refused: list[tuple[str, str]],
) -> tuple[Kernel, str]:
    """Returns the kernel that ranks first, and what is to be said of others that rank equally."""
    if not supporting:
        message = f"no installed kernel supports {_what(question)}{_listing(refused)}"
        raise KernelError(message)
    first, *others = sorted(supporting, key=_rank)
    state, kernel = first
    tied = [o for o, k in others if _rank((o, k))[:2] == _rank(first)[:2] and o.distribution != state.distribution]
    if not tied:
        return kernel, ""
    pin = f'--set \'execution.kernels={{"{question.operation.name}": "{tied[0].key}"}}\''
    names = " and ".join(other.key for other in tied)
    note = f"{state.key} and {names} rank equally: the first is used, and another with {pin}"
    host().warn(note)
    return kernel, note


class _Use(NamedTuple):
    """A kernel met before for this very problem, and its tuning; an empty name if there was none."""

    kernel: str = ""
    tuning: Tuning = ()


def _use(question: _Question, uses: "tuple[KernelUse, ...]") -> _Use:
    asked = (question.operation.name, question.problem.describe())
    return next((_Use(kernel, tuning) for *met, kernel, tuning in uses if tuple(met) == asked), _Use())


def _offered(question: _Question, kernel: Kernel, tuning: Tuning) -> tuple[Tuning, str]:
    """Returns a tuning that a file named where the kernel offers it, else none, and what is to be said of it.

    A kernel is tested with the sizes it offers: with others, written by hand or by an older version, it may fail late
    or compute wrong.
    """
    if not tuning:
        return (), ""
    offered = kernel.tunings(question.problem, question.device)
    if tuning in (tuple(sorted(one)) for one in offered):
        return tuning, ""
    valid = "; ".join(_settings(one) for one in offered) or "none"
    return (), (
        f"{_settings(tuning)} of the tuning table or of this run's record isn't used: for this problem {kernel.name} "
        f"offers {valid}; `kanawa kernels EXPERIMENT --bench` measures them"
    )


def _settings(tuning: Tuning) -> str:
    return ", ".join(f"{name}={value}" for name, value in tuning)


def _as_measured(
    question: _Question, measured: str, supporting: list[tuple["ComponentState", Kernel]]
) -> Kernel | None:
    """Returns the kernel that was fastest here, if it can still be used."""
    found = next((kernel for _, kernel in supporting if kernel.name == measured), None)
    if found is None or (question.policy.require_fused and _falls_back(question, found)):
        return None
    return found


def _as_recorded(
    question: _Question,
    recorded: str,
    supporting: list[tuple["ComponentState", Kernel]],
    refused: list[tuple[str, str]],
) -> tuple[Kernel, str]:
    """Returns the recorded kernel, or the best of those there are, and what is to be said of it."""
    found = next((kernel for _, kernel in supporting if kernel.name == recorded), None)
    if found is None:
        gone = f"it is not installed for {question.platform} any more"
        best, _ = _best(question, supporting, refused)
        return best, f"this run had {recorded}, which can't be used: {dict(refused).get(recorded, gone)}"
    _, first = min(supporting, key=_rank)
    if first is found:
        return found, ""
    pin = f'--set \'execution.kernels={{"{question.operation.name}": "{first.name}"}}\''
    return found, f"kept as this run chose it; {first.name}, which ranks higher now, is used with {pin}"


def _pinned(
    question: _Question,
    supporting: list[tuple["ComponentState", Kernel]],
    refused: list[tuple[str, str]],
) -> Kernel:
    for pin in question.pins:
        for state, kernel in supporting:
            if pin in (state.name, state.key):
                return kernel
    reasons = dict(refused)
    lines = []
    for pin in question.pins:
        bare = pin.rpartition(":")[2]
        if bare in reasons:
            lines.append(f"{pin} refuses {_what(question)}: {reasons[bare]}")
        else:
            near = did_you_mean(bare, (state.name for state in question.installed))
            lines.append(f"{pin} is not installed for {question.platform}{near}")
    message = "\n".join([f"no pinned {question.operation.name} kernel can be used:", *lines])
    raise PinError(message)


def _falls_back(question: _Question, kernel: Kernel) -> bool:
    """Returns whether the operation should have a fused kernel on this accelerator, and the kernel isn't one."""
    if kernel.fused or question.platform == OWN or not question.operation.expects_fused:
        return False
    return question.device is None or question.operation.name not in question.device.unfused


def _check_fused(question: _Question, kernel: Kernel, refused: list[tuple[str, str]]) -> None:
    if not _falls_back(question, kernel):
        return
    message = (
        f"a fused kernel is required but {_what(question)} gets {kernel.name}, which isn't fused"
        f"{_listing(refused)}\nchange the problem so that one applies, install a backend that has "
        f"one, or drop require_fused"
    )
    raise KernelError(message)


def _what(question: _Question) -> str:
    device = question.device.name if question.device is not None else question.platform
    return f"{question.operation.name} {question.problem.describe()} on {device}"


def _listing(refused: list[tuple[str, str]]) -> str:
    if not refused:
        return "; no other kernel of the operation is installed for this platform"
    return "; refused:" + "".join(f"\n  {name}: {reason}" for name, reason in refused)
