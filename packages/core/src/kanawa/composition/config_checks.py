"""What is wrong with a config for a target: unset fields, modules that refuse to be built, plugins' checks."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kanawa.composition.blame import BuildError, blamed
from kanawa.composition.target import Target
from kanawa.config import REQUIRED, Config, IncompleteConfigError, Usual
from kanawa.config.field_types import parts_of
from kanawa.errors import CompositionError, ConfigError, KanawaError, did_you_mean
from kanawa.plugins import host
from kanawa.plugins.fault import named_after


class Problems:
    """The errors of a composition so far, in the order of its steps."""

    def __init__(self) -> None:
        self._errors: list[KanawaError] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Keeps a KanawaError of the block for later, once: steps may stumble over the same fault."""
        try:
            yield
        except KanawaError as error:
            if _text(error) not in map(_text, self._errors):
                self._errors.append(error)

    def add(self, text: str) -> None:
        """Adds a problem that wasn't raised."""
        with self.noted():
            raise CompositionError([text])

    def report(self) -> None:
        """Raises what was noted: a single error as it was raised, several as one CompositionError."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise CompositionError([_text(error) for error in self._errors])


def checked_model(name: str, cfg: Config, target: Target | None, built: Any, problems: Problems) -> Any:
    """Notes all that is wrong with the config; returns its model: `built`, or a new one if modifiers changed it."""
    sentences: list[str] = []
    model = None
    try:
        cfg.freeze()
    except IncompleteConfigError as error:
        sentences += error.problems
    else:
        try:
            if "model" in cfg.fields():
                # A large model takes a second to declare: it is built again only where a modifier changed it.
                unchanged = built is not None and built.config == cfg.model
                with blamed(cfg.model, "model"):
                    model = built if unchanged else cfg.model.build()
        except BuildError:
            # As it was raised: its cause has the traceback that --traceback prints.
            with problems.noted():
                raise
        except KanawaError as error:
            sentences.append(str(error))
    with problems.noted():
        if "execution" in cfg.fields():
            sentences += _pin_problems(cfg.execution.kernels)
    sentences += _reported(cfg, model, target)
    for sentence in sentences:
        problems.add(f"{name}: {sentence}")
    return model


def unusual_values(cfg: Config) -> Iterator[str]:
    """Yields what is odd about numbers that somebody set, one sentence each."""
    for path, node in cfg.walk():
        for name, field in node.fields().items():
            value = getattr(node, name)
            if type(value) not in (int, float) or value == field.default:
                continue
            parts = parts_of(field.type.annotation)
            metadata = (each for part in parts for each in getattr(part, "__metadata__", ()))
            for usual in (each for each in metadata if isinstance(each, Usual)):
                if warning := usual.warning(value):
                    where = f"{path}.{name}" if path else name
                    default = "" if field.default is REQUIRED else f"; its default is {field.default}"
                    yield f"{where} is {value}, {warning}{default}"


def count_problems(cfg: Config, model: Any, target: Target) -> int:
    """Returns how many problems the config has; 0 for an incomplete one: `--set` may yet complete it."""
    # A frozen config can't be changed, and modifiers and overrides come later.
    trial = cfg.clone()
    try:
        trial.freeze()
    except ConfigError:
        return 0
    return len(_reported(trial, model, target))


def _reported(cfg: Config, model: Any, target: Target | None) -> list[str]:
    """Returns what plugins report of a frozen config; a stranger's sentence names its plugin."""
    answers = host().collect("kanawa_config_checks", config=cfg, target=target, model=model)
    return [f"{sentence}{named_after(plugin)}" for plugin, sentences in answers for sentence in sentences]


def _pin_problems(pins: Mapping[str, str]) -> list[str]:
    """Returns what is wrong with pins {operation: kernel's name}; whether a kernel applies is found in tracing."""
    states = host().components("kernels")
    operations = {state.name.partition(".")[0] for state in states}
    problems = []
    for operation, pin in pins.items():
        names = [state.name for state in states if state.name.startswith(f"{operation}.")]
        bare = pin.rpartition(":")[2]  # a name claimed twice is written distribution:name
        if operation not in operations:
            near = did_you_mean(operation, operations)
            problems.append(f"execution.kernels: no installed kernel computes an operation {operation!r}{near}")
        elif bare not in names:
            near = did_you_mean(bare, names)
            problems.append(f"execution.kernels: no installed kernel of {operation} is called {pin!r}{near}")
    return problems


def _text(error: KanawaError) -> str:
    notes = [f"  {note}" for note in getattr(error, "__notes__", ())]
    return "\n".join([str(error), *notes])
