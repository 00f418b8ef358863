"""Reading and writing the parts that Hugging Face configs share: rotary embeddings, activations, sizes."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kanawa.config import REQUIRED, Config
from kanawa.contracts import ForeignConfigError
from kanawa.errors import did_you_mean
from kanawa.plugins import component, host

from kanawa_layers.positions.frequency_scaling import FrequencyScaling, LinearScaling, Llama3Scaling, YarnScaling
from kanawa_layers.positions.rotary import Rotary

T = TypeVar("T", bound=Hashable)

#: A config.json.
Foreign = Mapping[str, Any]

#: Of a config's list of layer types.
SLIDING, FULL = "sliding_attention", "full_attention"

#: The catalog's kind: entry points of the group `kanawa.hf_activations` map Hugging Face's names to functions.
ACTIVATIONS = "hf_activations"


class Key(NamedTuple):
    """A key of a config.json, the recipe's argument that it sets, and the path of our field that it is written from."""

    name: str
    argument: str
    path: str
    default: Any = REQUIRED


def arguments(config: Foreign, keys: Iterable[Key]) -> dict[str, Any]:
    """Returns a recipe's arguments from a config; raises KeyError for a missing key without a default."""
    return {
        key.argument: config[key.name] if key.default is REQUIRED else config.get(key.name, key.default) for key in keys
    }


def written(model: Config, keys: Iterable[Key]) -> dict[str, Any]:
    """Returns the inverse of `arguments`: a model's fields by the names of a config."""
    return {key.name: model.get(key.path) for key in keys}


def activation(name: str) -> Callable[..., Any]:
    """Returns the function of a name in ACT2FN; raises ForeignConfigError for an unknown one."""
    names = [state.name for state in host().components(ACTIVATIONS) if state.state.usable]
    if name not in names:
        message = f"unknown activation {name!r}{did_you_mean(name, names)}"
        raise ForeignConfigError(message)
    function: Callable[..., Any] = component(ACTIVATIONS, name, asker="kanawa-layers")
    return function


def activation_name(function: Callable[..., Any], prefer: str = "silu") -> str:
    """Returns the name of a function, `prefer` where it has several; raises ForeignConfigError where it has none."""
    states = [state for state in host().components(ACTIVATIONS) if state.state.usable]
    names = [state.name for state in states if component(ACTIVATIONS, state.key) is function]
    if not names:
        message = f"the activation {getattr(function, '__name__', function)} has no Hugging Face name"
        raise ForeignConfigError(message)
    # gelu_new and gelu_pytorch_tanh are one function; each family writes the name it was released with.
    return prefer if prefer in names else names[0]


def expect(config: Foreign, **values: Any) -> None:
    """Raises ForeignConfigError where a key differs from the one value we can express."""
    wrong = [f"{key} is {config[key]!r}, expected {v!r}" for key, v in values.items() if config.get(key, v) != v]
    if wrong:
        message = f"a {config.get('model_type')} model of this kind has no recipe: {'; '.join(wrong)}"
        raise ForeignConfigError(message)


def sizes(config: Foreign) -> dict[str, Any]:
    """Returns the sizes that most families name alike, as a recipe's arguments."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim")
    return {
        "num_layers": config["num_hidden_layers"],
        "input_dim": width,
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        # None for the usual width, so that the config equals that of a recipe without it.
        "head_dim": None if head_dim is None or head_dim * heads == width else head_dim,
        "hidden_dim": config["intermediate_size"],
        "vocab_size": config["vocab_size"],
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }


def size_keys(model: Any, attention: Any, hidden_dim: int) -> dict[str, Any]:
    """Returns the inverse of `sizes` for a model whose attention layers are alike."""
    heads = attention.num_heads
    return {
        "num_hidden_layers": model.stack.num_layers,
        "hidden_size": model.input_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": attention.num_kv_heads or heads,
        "head_dim": attention.head_dim or model.input_dim // heads,
        "intermediate_size": hidden_dim,
        "vocab_size": model.vocab_size,
        "rms_norm_eps": model.norm.eps,
    }


def rotary(config: Foreign, kind: str | None = None, **fields: Any) -> Rotary.Config:
    """Returns the rotary embedding of a config, written as `rope_parameters` (5.x) or theta and `rope_scaling`.

    `kind` picks a layer type's where they differ. Raises ForeignConfigError for a scaling without a counterpart.
    """
    rope: dict[str, Any] = dict(config.get("rope_parameters") or {})
    if kind is not None and kind in rope:
        rope = dict(rope[kind])
    # Both may be present; `rope_parameters` is the newer one and wins.
    rope = {**(config.get("rope_scaling") or {}), **rope}
    theta: Any = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    fraction: Any = rope.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    return Rotary.Config(
        theta=float(theta),
        fraction=float(fraction),
        scaling=_scaling(rope, config),
        trained_length=_trained_length(rope, config),
        **fields,
    )


def _trained_length(rope: Foreign, config: Foreign) -> int | None:
    """Returns the length of sequences before a scaling; for a linear one, the longest divided by its factor."""
    if "original_max_position_embeddings" in rope:
        original: int | None = rope["original_max_position_embeddings"]
        return original
    longest: int | None = config.get("max_position_embeddings")
    linear = rope.get("rope_type", rope.get("type")) == "linear"
    return round(longest / float(rope["factor"])) if linear and longest else longest


def _scaling(rope: Foreign, config: Foreign) -> FrequencyScaling.Config | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    original = rope.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling.Config(factor=float(rope["factor"]))
    if kind == "llama3":
        return Llama3Scaling.Config(
            factor=float(rope["factor"]),
            low_frequency_factor=float(rope["low_freq_factor"]),
            high_frequency_factor=float(rope["high_freq_factor"]),
            original_length=original,
        )
    if kind == "yarn":
        return YarnScaling.Config(
            factor=float(rope["factor"]),
            original_length=original,
            # `or`, not a default: the key may be null.
            fast_turns=float(rope.get("beta_fast") or 32.0),
            slow_turns=float(rope.get("beta_slow") or 1.0),
            truncate=rope.get("truncate", True),
            multiplier=rope.get("attention_factor"),
            mscale=rope.get("mscale"),
            mscale_all_dim=rope.get("mscale_all_dim"),
        )
    message = f"unknown rope_type {kind!r}; known: default, linear, llama3, yarn"
    raise ForeignConfigError(message)


def rope_keys(positions: Any) -> dict[str, Any]:
    """Returns the inverse of `rotary`, in the form that every version reads: `rope_theta` and `rope_scaling`."""
    keys: dict[str, Any] = {"rope_theta": positions.theta}
    scaling = positions.scaling
    if positions.trained_length is not None and (scaling is None or isinstance(scaling, LinearScaling.Config)):
        stretched = 1.0 if scaling is None else scaling.factor
        keys["max_position_embeddings"] = round(positions.trained_length * stretched)
    if isinstance(scaling, (Llama3Scaling.Config, YarnScaling.Config)):
        # The stretched length: without it, transformers uses its default of 2,048.
        keys["max_position_embeddings"] = round(scaling.original_length * scaling.factor)
    if positions.fraction != 1.0:
        keys["partial_rotary_factor"] = positions.fraction
    if positions.scaling is not None:
        keys["rope_scaling"] = _scaling_keys(positions.scaling)
    return keys


def _scaling_keys(scaling: Any) -> dict[str, Any]:
    if isinstance(scaling, LinearScaling.Config):
        return {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling.Config):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_length,
        }
    if isinstance(scaling, YarnScaling.Config):
        optional = {
            "attention_factor": scaling.multiplier,
            "mscale": scaling.mscale,
            "mscale_all_dim": scaling.mscale_all_dim,
        }
        return {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_length,
            "beta_fast": scaling.fast_turns,
            "beta_slow": scaling.slow_turns,
            "truncate": scaling.truncate,
            **{key: value for key, value in optional.items() if value is not None},
        }
    message = f"the frequency scaling {type(scaling).__qualname__} has no Hugging Face name"
    raise ForeignConfigError(message)


def period_of(kinds: Sequence[T]) -> tuple[T, ...]:
    """Returns the shortest prefix that, repeated and cut off, is the whole list."""
    # The last period may be cut off: Gemma 3 27B has 62 layers of a pattern of 6. What isn't the longest border (a
    # beginning that is also an end) is the shortest period; all borders take linear time (Knuth, Morris, Pratt).
    borders = [0] * len(kinds)
    for i in range(1, len(kinds)):
        length = borders[i - 1]
        while length and kinds[i] != kinds[length]:
            length = borders[length - 1]
        borders[i] = length + 1 if kinds[i] == kinds[length] else 0
    return tuple(kinds[: len(kinds) - borders[-1]] if kinds else kinds)


def layer_types(config: Mapping[str, Any], usual: Sequence[str]) -> tuple[str, ...]:
    """Returns the repeating pattern of a config's `layer_types`, or `usual` where it has none."""
    listed = config.get("layer_types")
    return tuple(usual) if listed is None else period_of(listed)


def repeated(pattern: Sequence[T], num_layers: int) -> list[T]:
    """Returns one entry a layer."""
    return [pattern[i % len(pattern)] for i in range(num_layers)]
