"""What of an experiment's data doesn't fit its model, found while composing, so that nothing starts in vain."""

import contextlib
from typing import Any

from kanawa.composition.blame import BuildError, blamed
from kanawa.contracts import Batch, CausalLM, DataSource, MaskedLM, Model
from kanawa.errors import KanawaError

from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.masked_diffusion import MaskedDiffusionRows
from kanawa_runtime.data.no_rows import NoRows
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.rollouts.prompts import NO_QUESTION
from kanawa_runtime.rollouts.rollouts import Rollouts
from kanawa_runtime.train.batches import check_vocabulary


def data_problems(config: Any) -> list[str]:
    """Returns what is wrong, one sentence each; nothing where the data can't be asked yet.

    A tokenizer that can't be read here may be there where the run starts: that is for the run to say.
    """
    kind = config.model._target
    if kind is None or not issubclass(kind, Model):
        return []
    said = (_record(config, kind), _hiding(config, kind), _question(config))
    problems = [sentence for sentence in said if sentence]
    if not problems and config.data._target is not NoRows and kind.batch_of(config.model) is not Batch:
        problems = _other_rows(config, kind)
    if problems:
        return problems
    try:
        with blamed(config.data, "data"):
            problem = check_vocabulary(config.data.build(), config.model)
    except BuildError as error:
        return [str(error)]
    except KanawaError:
        return []
    return [problem] if problem else []


def _record(config: Any, kind: type[Model]) -> str:
    """Returns what is wrong with a model that learns from other records than the data makes."""
    made: Any = config.data._target if isinstance(config.data, DataSource.Config) else None
    wanted = kind.batch_of(config.model)
    if made is not None and (wanted is made.batch or made is NoRows):
        return ""
    found = "" if made is None else f", and {made.__qualname__} makes {made.batch.__name__}"
    return (
        f"model: {kind.__qualname__} learns from records of {wanted.__name__}{found}; name a source of those with "
        "--data. docs/your-own/experiment.md shows how to write one"
    )


def _other_rows(config: Any, kind: type[Model]) -> list[str]:
    """Returns what of rows that aren't of tokens doesn't fit the model: shapes, and classes."""
    source, model = config.data.build(), config.model
    if not source.is_named:
        return []
    problems = []
    for name, shape in kind.row_shapes(model).items():
        field = source.fields.get(name)
        if field is not None and field.shape != shape:
            message = f"data: rows have {name} of {list(field.shape)}, and the model takes {list(shape)}; change one"
            problems.append(message)
    with contextlib.suppress(KanawaError):  # A tokenizer may be there where the run starts.
        problems += [problem] if (problem := kind.data_problem(model, source)) else []
    names, count = source.class_names, model.num_classes if "num_classes" in model.fields() else None
    own = model.class_names if "class_names" in model.fields() else ()
    # A model of no classes reads none, such as one that draws by texts.
    if count and len(names) > count:
        problems.append(f"data has {len(names)} classes, but model.num_classes is {count}; set it to {len(names)}")
    elif names and own and names != own:
        at = next((i for i, (ours, theirs) in enumerate(zip(own, names, strict=False)) if ours != theirs), len(names))
        theirs = names[at] if at < len(names) else "none"
        problems.append(
            f"class {at} is {own[at]!r} of the model and {theirs!r} of the data: set data.class_names to the model's "
            "names, or train a new head on --data"
        )
    return problems


def _question(config: Any) -> str:
    """Returns what is wrong where rollouts would have one token for a prompt."""
    rollouts = config.rollouts if "rollouts" in config.fields() else None
    if not isinstance(rollouts, Rollouts) or rollouts.prompt_tokens is not None:
        return ""
    if not isinstance(config.data, TextSource.Config | RandomTokens.Config):
        return ""
    return f"rollouts: rows of {type(config.data).__qualname__.removesuffix('.Config')} have no question; {NO_QUESTION}"


def _hiding(config: Any, kind: type[Model]) -> str:
    """Returns what is wrong where a model that sees both sides would be shown what it is to tell, or the reverse.

    It would train, and its loss would fall: nothing else would say that it learned nothing.
    """
    shown = isinstance(config.data, TextSource.Config | RandomTokens.Config)
    if issubclass(kind, MaskedLM) and shown:
        return (
            f"model: {kind.__qualname__} predicts hidden tokens, and data hides none; take the model with --modify "
            "model:name=NAME, which hides them, or put the data into `masked`"
        )
    if issubclass(kind, CausalLM):
        hidden, diffuses = kind.hidden_token(config.model), isinstance(config.data, MaskedDiffusionRows.Config)
        if diffuses != (hidden is not None) or (diffuses and config.data.build().mask_id != hidden):
            found = f"hides tokens as {config.data.build().mask_id}" if diffuses else "hides none as that id"
            return (
                f"model.loss takes {'no id' if hidden is None else hidden} for a hidden token, and data {found}; "
                "set both with --modify masked-diffusion, after modifiers that replace one of them"
            )
    if issubclass(kind, CausalLM) and isinstance(config.data, MaskedTokens.Config):
        return (
            f"model: {kind.__qualname__} predicts the next token, and data hides some, for one that sees both sides; "
            "take the model with --modify model:name=NAME, or set data to the source inside"
        )
    return ""
