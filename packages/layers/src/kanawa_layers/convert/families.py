"""Families of Hugging Face models, found in the catalog by model_type: any package may add one with an entry point."""

import re
from collections.abc import Mapping
from typing import Any

from kanawa.config import Config, PathError, diff, replace
from kanawa.contracts import ForeignConfigError, ForeignFamily
from kanawa.errors import KanawaError, UsageError, did_you_mean
from kanawa.module import Module
from kanawa.plugins import component, host

from kanawa_layers.attention.grouped_query import GroupedQueryAttention
from kanawa_layers.convert.errors import UnknownFamilyError
from kanawa_layers.convert.model_type import is_of_diffusers, model_type_of
from kanawa_layers.feedforward.gated import FusedGatedFeedForward, GatedFeedForward
from kanawa_layers.models.decoder import DecoderLM
from kanawa_layers.models.encoder import EncoderLM
from kanawa_layers.models.head import Head, LabelHead, TiedHead, UntiedHead
from kanawa_layers.models.labels import as_classifier
from kanawa_layers.models.reward import RewardHead, as_language_model, as_reward_model

KIND = "hf_families"
#: Fields that only training uses, by their last name: no Hugging Face config records them, so comparisons ignore them.
_TRAINING_ONLY = frozenset(
    {
        "image_size",
        "text_length",
        # Of videos, in the same way.
        "shape",
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
        # Of diffusion models, whose folders hold the network alone.
        "objective",
        "sampler",
        "wish_dropout",
        # Of parts that another model was before.
        "source",
        "tokenizer",
        "trained",
    }
)
#: Errors of a family's `to_foreign` for a model of other layers.
_BUILT_DIFFERENTLY = (AttributeError, LookupError, PathError, TypeError, ValueError, StopIteration)
_SHOWN = 4
#: How the names of models for classification end.
_OF_SEQUENCES, _OF_TOKENS = "ForSequenceClassification", "ForTokenClassification"
_PROBLEM = "single_label_classification"


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
    kind = model_type_of(config) or ""
    known = family(kind)
    try:
        model = known.from_foreign(config)
        labelled: Config = _with_labels(model, config)
        return labelled
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
    if isinstance(vars(model).get("head"), RewardHead.Config | LabelHead.Config):
        return _classifier_config(model, name)
    model = with_separate_projections(model)
    unlike: list[str] = []
    close: dict[str, list[str]] = {}
    for kind in [name] if name else known_families():
        known = family(kind)
        try:
            config = known.to_foreign(model)
            config = config if is_of_diffusers(config) else {"model_type": kind, **config}
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


def _with_labels(model: Any, config: Mapping[str, Any]) -> Any:
    """Returns a language model as the classifier that its config.json says it is, if it says so.

    A decoder with one label is a reward model. Raises ForeignConfigError for several labels a text.
    """
    kind = str((config.get("architectures") or [""])[0])
    of_tokens = kind.endswith(_OF_TOKENS)
    if not (of_tokens or kind.endswith(_OF_SEQUENCES)):
        return model
    named = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(config.get("num_labels") or 2)}
    labels = tuple(str(named[i]) for i in sorted(named, key=int))
    if len(labels) == 1 and not of_tokens and isinstance(model, DecoderLM.Config):
        return as_reward_model(model)
    problem = config.get("problem_type") or _PROBLEM
    if problem != _PROBLEM and len(labels) > 1:
        message = f"{kind} says problem_type is {problem!r}, expected {_PROBLEM!r}: one label a text or token"
        raise ForeignConfigError(message)
    return as_classifier(model, labels, of_tokens=of_tokens)


def _classifier_config(model: Any, name: str | None) -> dict[str, Any]:
    """Returns the config.json of a model with a head of labels or of a reward: its language model's, with labels."""
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
    labels: tuple[str, ...] = ("LABEL_0",)
    kind = _OF_SEQUENCES
    if isinstance(model.head, LabelHead.Config):
        labels, kind = model.head.labels, _OF_TOKENS if model.head.of_tokens else kind
    begin = re.sub(r"(ForCausalLM|LMHeadModel|Model)$", "", str(config["architectures"][0]))
    named: dict[str, Any] = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    named |= {"label2id": {label: i for i, label in enumerate(labels)}}
    tied = {} if isinstance(model, EncoderLM.Config) else {"tie_word_embeddings": False}
    return {**config, "architectures": [begin + kind], **named, **tied}


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
