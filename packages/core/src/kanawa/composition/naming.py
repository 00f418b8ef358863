"""What an EXPERIMENT argument means: a catalogued experiment, a catalogued model, or a folder with a model in it."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from kanawa.composition.saved import read_config_file
from kanawa.composition.target import Target
from kanawa.config import Config, origin
from kanawa.errors import ConfigError, UnknownNameError, UsageError, did_you_mean
from kanawa.local_path import local_path
from kanawa.plugins import ask_each, component, host
from kanawa.plugins.catalog import installation_hint

#: Kinds whose names an EXPERIMENT argument may be, the first that has the name wins.
KINDS = ("experiments", "models")


class NoTemplateError(UsageError):
    """A model was named as an experiment, and no installed template has data and a learner for it."""

    def __init__(self, message: str, model: Config) -> None:
        super().__init__(message)
        self.model = model


class Base(NamedTuple):
    """An experiment before targets and modifiers; `source` is the folder whose weights it starts from."""

    name: str
    config: Config
    source: Path | None = None


def base_of(experiment: str | Config, target: Target | None = None) -> Base:
    """Returns the experiment of a name, a folder or a config.

    A catalogued name wins over a folder of that name: write ./name for the folder.
    Raises UnknownNameError with the nearest names of every kind, UsageError for a folder or a model that has no
    experiment.
    """
    if isinstance(experiment, Config):
        return Base(type(experiment).__qualname__, experiment.clone())
    return _named(experiment, target)


def with_other_data(base: Base, data: str) -> Base:
    """Returns the experiment on other data, read by the tokenizer of its folder; raises UsageError for unknown data."""
    template, refusals = _willing(base.config.model if "model" in base.config.fields() else base.config)
    if template is None:
        raise UsageError("\n".join([f"--data: {base.name} takes no other data:", *refusals]))
    with origin("command line", f"--data {data}"):
        return base._replace(config=template.with_data(base.config, data, base.source))


def is_folder(text: str) -> bool:
    """Returns whether an EXPERIMENT argument is written as a path: it has a separator, or is . or ~."""
    return os.sep in text or text.startswith((".", "~"))


def catalogued_kind(name: str) -> str | None:
    """Returns the kind, of those an EXPERIMENT may be, that has this name; None if neither has."""
    bare = name.rpartition(":")[2]
    for kind in KINDS:
        if any(state.name == bare for state in host().components(kind)):
            return kind
    return None


def _named(text: str, target: Target | None) -> Base:
    folder = _folder(text)
    kind = None if is_folder(text) else catalogued_kind(text)
    if kind == "experiments":
        return Base(text, _made("experiments", text))
    if kind == "models":
        model = _made("models", text)
        with origin("experiment", f"{text}, with default data and learner"):
            return Base(text, _around_model(model, f"model {text!r}", target))
    if folder.is_dir():
        return _from_folder(text, folder, target)
    if folder.suffix == ".json" and folder.is_file():
        return Base(folder.stem, read_config_file(folder))
    raise UnknownNameError(_unknown(text))


def _folder(text: str) -> Path:
    """Returns a text as a path; of a run at an address, the local folder that mirrors it."""
    # Its package is JAX's size, and a name is asked for by verbs that never start it.
    from kanawa.contracts import is_address

    if is_address(text):
        for _, folder in host().collect("kanawa_local_folder", address=text):
            return Path(folder)
    return local_path(text)


def _made(kind: str, name: str) -> Config:
    """Returns what a catalogued function without arguments returns, set by the experiment of that name."""
    factory = component(kind, name)
    with origin("experiment", name):
        cfg = factory()
    if not isinstance(cfg, Config):
        message = f"{kind.removesuffix('s')} {name!r} returned {type(cfg).__name__}, expected a config"
        raise ConfigError(message)
    return cfg


def _around_model(model: Config, called: str, target: Target | None) -> Config:
    """Returns an experiment of the model with default data and learner; raises NoTemplateError with every refusal."""
    template, refusals = _willing(model)
    if template is None:
        raise NoTemplateError("\n".join([f"{called} can't be trained as it is:", *refusals]), model)
    around: Config = template.experiment(model, *_where(target))
    return around


def _from_folder(text: str, folder: Path, target: Target | None) -> Base:

    def derived(template: Any) -> Config | None:
        with origin("experiment", f"derived from {folder}"):
            made: Config | None = template.from_folder(folder, *_where(target))
        return made

    for _, _, cfg in ask_each("templates", derived):
        if cfg is not None:
            return Base(folder.resolve().name, cfg, folder)
    holders = ", ".join(sorted(state.name for state in host().components("model_stores"))) or "none installed"
    lines = [f"{text} holds no model of a known kind ({holders})"]
    if not host().loaded("templates"):
        lines += ["nothing installed makes experiments of folders", *installation_hint(host().installed())]
    else:
        lines.append("expected a run (config.json and checkpoints/) or a folder with another library's config.json")
    raise UsageError("\n".join(lines))


def _where(target: Target | None) -> tuple[str | None, int]:
    return (None, 1) if target is None else (target.device.platform, target.jax_devices)


def _willing(model: Config) -> tuple[Any, list[str]]:
    """Returns the first template that takes the model, else None and why each refused."""
    refusals = []
    for state, template, refusal in ask_each("templates", lambda template: template.refusal(model)):
        if not refusal:
            return template, []
        refusals.append(f"  {state.name}: {refusal}")
    nothing = ["  nothing installed supplies data and a learner", *installation_hint(host().installed())]
    return None, refusals or nothing


def _unknown(text: str) -> str:
    if is_folder(text):
        return f"there is no folder {text}; expected a run, a Hugging Face folder, or a catalogued name"
    elsewhere = sorted({s.kind for s in host().components() if s.name == text})
    if elsewhere:
        near = f"; it is one of the {' and the '.join(elsewhere)}: kanawa show {elsewhere[0]} {text}"
    else:
        near = did_you_mean(text, {state.name for kind in KINDS for state in host().components(kind)})
    lines = [f"no experiment, model or folder is called {text!r}{near}"]
    return "\n".join([*lines, *installation_hint(host().installed())])


def experiment_config(model: Config, target: Target | None = None, data: str | None = None) -> Config:
    """Returns a config that trains a model with default data and learner, or on other data; not frozen.

    Nothing of the target is in it but the sizes that suit it. Raises NoTemplateError for a model that no installed
    template makes an experiment of.
    """
    around = _around_model(model.clone(), type(model).__qualname__, target)
    if data is None:
        return around
    config: Config = _willing(model)[0].with_data(around, data)
    return config
