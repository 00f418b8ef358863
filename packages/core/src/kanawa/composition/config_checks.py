"""What is wrong with a config for a target: unset fields, modules that refuse to be built, plugins' checks."""

from typing import Any

from kanawa.composition.blame import BuildError, blamed
from kanawa.composition.gathering import Problems
from kanawa.composition.kernel_pins import pin_problems
from kanawa.composition.target import Target
from kanawa.config import Config, IncompleteConfigError
from kanawa.errors import ConfigError, KanawaError
from kanawa.plugins import host


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
            sentences += pin_problems(cfg.execution.kernels)
    sentences += _reported(cfg, model, target)
    for sentence in sentences:
        problems.add(f"{name}: {sentence}")
    return model


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
    """Returns what plugins report of a frozen config."""
    answers = host().collect("kanawa_config_checks", config=cfg, target=target, model=model)
    return [sentence for _, sentences in answers for sentence in sentences]
