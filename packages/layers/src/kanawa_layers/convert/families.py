"""Families of Hugging Face models, found in the catalog by model_type: any package may add one with an entry point."""

from collections.abc import Mapping
from typing import Any

from kanawa.config import Config, PathError, diff, replace
from kanawa.contracts import ForeignConfigError, ForeignFamily
from kanawa.errors import KanawaError, UsageError, did_you_mean
from kanawa.module import Module
from kanawa.plugins import component, host

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.convert.errors import UnknownFamilyError
from kanawa_layers.feedforward.gated import FusedGatedFeedForward, GatedFeedForward
from kanawa_layers.models.head import Head, TiedHead, UntiedHead
from kanawa_layers.models.reward import RewardHead, as_language_model, as_reward_model

KIND = "hf_families"
#: Fields that only training uses, by their last name: no Hugging Face config records them, so comparisons ignore them.
_TRAINING_ONLY = frozenset(
    {
        "init_scale",
        "init_stddev",
        "scan",
        "remat",
        "loss",
        "dropout",
        "balance_loss",
        "z_loss",
        "cache",
        "dispatcher",
        "trained_length",
    }
)
#: Errors of a family's `to_foreign` for a model of other layers.
_BUILT_DIFFERENTLY = (AttributeError, LookupError, PathError, TypeError, ValueError, StopIteration)
_SHOWN = 4
#: How the name of a model for classification ends.
_CLASSIFIER = "ForSequenceClassification"


def known_families() -> list[str]:
    """Returns the model_types that the installed packages know."""
    return sorted({state.name for state in host().components(KIND)})


def family(model_type: str) -> ForeignFamily:
    """Returns the family; raises UnknownFamilyError listing those that are known."""
    known = known_families()
    if model_type not in known:
        near = did_you_mean(model_type, known)
        message = f"no installed package knows the model_type {model_type[:80]!r}{near}; known: {', '.join(known)}"
        raise UnknownFamilyError(message)
    known_family: ForeignFamily = component(KIND, model_type, asker="kanawa-layers")
    return known_family


def model_config(config: Mapping[str, Any]) -> Config:
    """Returns our model config of a config.json; raises UnknownFamilyError, ForeignConfigError."""
    if "quantization_config" in config:
        quantisation = config["quantization_config"]
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, Mapping) else "unknown"
        message = f"the checkpoint is quantised ({method}); only plain weights convert: dequantise it first"
        raise ForeignConfigError(message)
    kind = config["model_type"]
    known = family(kind)
    try:
        model = known.from_foreign(config)
        return as_reward_model(model) if _gives_reward(config) else model
    except KeyError as error:
        message = f"the config of a {kind} model lacks {error}"
        raise ForeignConfigError(message) from error
    except KanawaError:
        raise
    except Exception as error:  # Third-party families may raise anything for invalid values.
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"the config of a {kind} model has an invalid value: {reason}"
        raise ForeignConfigError(message) from error


def built(cfg: Config) -> Module:
    """Returns the model of a family's config; raises ForeignConfigError for inconsistent values."""
    try:
        model: Module = cfg.build()
    except UsageError:
        raise
    except Exception as error:  # Layers check their values only while they are built.
        message = f"the config is of a model that can't be built: {error or type(error).__name__}"
        raise ForeignConfigError(message) from error
    return model


def foreign_config(model: Config, name: str | None = None) -> dict[str, Any]:
    """Returns the config.json of a model, of family `name` or of the one that can express it.

    A family expresses a model if its own config of it reads back as the same model, training and fused projections
    aside. Raises ForeignConfigError naming what no family can express.
    """
    if isinstance(vars(model).get("head"), RewardHead.Config):
        return _reward_config(model, name)
    model = with_separate_projections(model)
    unlike: list[str] = []
    close: dict[str, list[str]] = {}
    for kind in [name] if name else known_families():
        known = family(kind)
        try:
            config = {"model_type": kind, **known.to_foreign(model)}
            close[kind] = differences(known.from_foreign(config), model)
        except ForeignConfigError as error:
            unlike.append(f"{kind}: {str(error).splitlines()[0]}")
        except _BUILT_DIFFERENTLY:
            unlike.append(f"{kind}: is built of other layers")
        else:
            if not close[kind]:
                return config
    reasons = [
        f"{kind}: can't express {'; '.join(different[:_SHOWN])}{' …' if len(different) > _SHOWN else ''}"
        for kind, different in sorted(close.items(), key=lambda item: len(item[1]))
    ]
    message = "\n  ".join(["no Hugging Face family is this model:", *reasons, *unlike])
    raise ForeignConfigError(message)


def _gives_reward(config: Mapping[str, Any]) -> bool:
    """Returns whether a config.json is of a decoder with one label: a reward model; raises ForeignConfigError for more.

    Such models are saved for the classification of sequences.
    """
    names = config.get("architectures") or [""]
    if not str(names[0]).endswith(_CLASSIFIER):
        return False
    count = config.get("num_labels") or len(config.get("id2label") or (0, 1))
    if count != 1:
        message = f"{names[0]} with {count} labels is a classifier; only those with one, reward models, are read"
        raise ForeignConfigError(message)
    return True


def _reward_config(model: Any, name: str | None) -> dict[str, Any]:
    """Returns the config.json of a reward model: that of its language model, saved for one label."""
    # A family may know only one of both heads.
    heads: tuple[Head.Config, ...] = (UntiedHead.Config(), TiedHead.Config())
    for last, head in enumerate(heads, 1 - len(heads)):
        try:
            config = foreign_config(as_language_model(model.clone(), head), name)
        except ForeignConfigError:
            if last == 0:
                raise
        else:
            break
    architectures = [str(one).replace("ForCausalLM", _CLASSIFIER) for one in config["architectures"]]
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {**config, "architectures": architectures, **labels, "tie_word_embeddings": False}


def differences(first: Config, second: Config) -> list[str]:
    """Returns the differences in what two models compute, as text."""
    return [
        str(change)
        for change in diff(with_separate_projections(first), with_separate_projections(second))
        if not _TRAINING_ONLY.intersection(part.split("[")[0] for part in change.path.split("."))
    ]


def with_separate_projections(model: Config) -> Config:
    """Returns a copy in which each fused projection is its parts: the same function, under the same foreign names.

    Each part gets the fused one's bias, initialisation and adapter.
    """
    model = model.clone()
    replace(model, target=GroupedQueryAttention, edit=_attention, allow_none=True)
    replace(model, target=FusedGatedFeedForward, edit=_feed_forward, allow_none=True)
    return model


def _attention(node: GroupedQueryAttention.Config) -> None:
    if node.qkv is not None:
        node.set(qkv=None, **{name: node.qkv.clone() for name in ("query", "key", "value")})


def _feed_forward(node: FusedGatedFeedForward.Config) -> Config:
    fields = {name: getattr(node, name) for name in ("input_dim", "hidden_dim", "activation", "gating", "down")}
    return GatedFeedForward.Config(gate=node.gate_up, up=node.gate_up.clone(), **fields)
