"""A published step as a plan of ours: the same shape, batch, sharding and rematerialisation."""

import dataclasses
import re
from typing import Any

import jax
import kanawa as kn
from arranged_ring import ArrangedRing
from kanawa.composition.experiment import Composition, compose
from kanawa.composition.target import parse_target
from kanawa.contracts import PrecisionConfig
from kanawa.errors import KanawaError
from kanawa.plugins import DeviceSpec, MeshRule, host
from kanawa_layers.feedforward.plain import PlainFeedForward
from kanawa_layers.recipes.deepseek_v3 import deepseek_v3
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.mixtral import mixtral
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.train.gradients import WholeBatch
from kanawa_runtime.train.trainer import Trainer

Row = dict[str, Any]

#: What MaxText calls the activations that our layers tag; its `mlpwo` is the last matmul of a layer, which no gradient
#: of ours reads again.
_TAGS = {
    "decoder_layer_input": ("layer_input",),
    "out_proj": ("attention_projection",),
    "context": ("attention_out", "attention_residuals"),
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "mlpwo": (),
}
_POLICIES = {
    "full": "policy=full",
    "minimal": "policy=dots",
    "minimal_flash": "policy=save-projections",
    "save_qkv_proj": 'save=["query","key","value"]',
    "qkv_proj_offloaded": 'offload=["query","key","value"]',
    "none": "policy=none",
    "not stated": "policy=none",
    "per the recipe": "policy=none",
    "attention scores recomputed only": "policy=none",
    "save_dot_except_mlpwi": 'save=["query","key","value","attention_projection"]',
    "selective": "policy=save-qkv-and-output",
    "adapters": "policy=none",
    "as its script": "policy=full",
}
#: Catalogued models, where a shape alone doesn't say what the layers are.
_CATALOGUED = {
    "gpt-oss-120b": "gpt-oss-120b",
    "gemma3-12b": "gemma3-12b",
    "llama4-scout-17b-16e": "llama4-scout",
    "llama4-maverick-17b-128e": "llama4-maverick",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen2.5-7b": "qwen2-7b",
    "qwen2.5-32b": "qwen2.5-32b",
}
#: The modifier of a precision, by how its name begins; bf16 and fp16 need none.
_PRECISIONS = {
    "int8": "int8",
    "fp8": "fp8",
    "mxfp8": "low-precision:recipe=mxfp8",
    # In a pipeline all stages' layers are alike.
    "nvfp4": "low-precision:recipe=nvfp4,plain_last=0",
}


def composed(row: Row) -> Composition:
    """Returns the composition of a row; raises KanawaError where it can't be expressed."""
    target = parse_target(row["target"])
    target = dataclasses.replace(target, device=device_of(row, target.device))
    shape = row["shape"]
    model = model_config(row["model"], shape)
    cfg = Trainer.Config(
        model=model,
        data=RandomTokens.Config(sequence_length=row["sequence_length"], vocab_size=model.vocab_size),
        batch_size=round(row["batch_per_chip"] * row["chips"]),
        precision=PrecisionConfig(compute="bfloat16"),
        steps=1000,
    )
    axes, dcn = mesh_axes(row)
    # The placement is published: with its rule nothing else is chosen, such as an optimizer in the host's memory.
    rule = MeshRule(name="published", platform=target.device.platform, mesh=axes, dcn=dcn)
    return compose(cfg, target, modifiers(row), overrides(row), rule=rule)


def device_of(row: Row, usual: DeviceSpec) -> DeviceSpec:
    """Returns the row's device: the target's, or a variant of it with its own `figures`.

    Of fewer watts the clock falls with the cube root: power goes with the clock and the voltage squared, and the
    voltage with the clock.
    """
    figures = dict(row.get("figures", {}))
    clock = (figures.pop("watts", 1.0) / figures.pop("of_watts", 1.0)) ** (1 / 3)
    peaks = {dtype: peak * clock for dtype, peak in usual.peak_flops.items()}
    return dataclasses.replace(usual, peak_flops=peaks, **figures)


def overrides(row: Row) -> list[Any]:
    """Returns what no modifier sets: microbatches of no rule, heads that stay whole, the rows that experts drop."""
    axes, found = mesh_axes(row)[0], list[Any]()
    if "stage" in axes or microbatches(row, axes) == 1:
        found.append(("gradients", WholeBatch.Config()))
    if axes.get("tensor", 1) > row["shape"]["kv_heads"]:
        found.append(f"execution.strategies[{int('stage' in axes)}].split_key_heads=false")
    place = [axis for axis in ("stage", "tensor", "context") if axis in axes]
    if "stage" in axes:
        # Megatron's first stage holds the embedding and its last one the head.
        found.append(("execution.strategies[0].split_vocab", False))
    if "context" in axes and parse_target(row["target"]).device.platform == "gpu":
        found.append((f"execution.strategies[{place.index('context')}]", ArrangedRing.Config()))
    if factor := re.search(r"capacity factor ([\d.]+)", row["parallelism"]):
        # The expert strategy comes after those of the axes tensor, context and fsdp, and a pipeline's before them.
        place = sum(axis in axes for axis in ("tensor", "context", "fsdp", "stage"))
        found.append(f"execution.strategies[{place}].capacity_factor={factor[1]}")
    return found


def modifiers(row: Row) -> list[str]:
    """Returns the modifiers that spread a row as its publisher did."""
    axes, _ = mesh_axes(row)
    found = [f"remat:{remat(row['remat'])}"]
    for word, modifier in _PRECISIONS.items():
        if row.get("precision", "").startswith(word):
            # The modifier fp8 leaves experts as they are.
            found.append("low-precision:recipe=fp8-tensor" if word == "fp8" and "experts" in row["shape"] else modifier)
    if rank := re.search(r"LoRA rank (\d+)", row.get("precision", "")):
        found.append(f"lora:rank={rank[1]}")
    # A pipeline's microbatches are its own; elsewhere what is left of a device's batch is gradient accumulation.
    count = microbatches(row, axes)
    if "stage" in axes:
        rounds = re.search(r"\((\d+) virtual", row["parallelism"])
        schedule = "interleaved" if rounds else "gpipe"
        found.append(f"pipeline:microbatches={count},schedule={schedule},rounds={rounds[1] if rounds else 1}")
    elif count > 1:
        found.append(f"accumulate:microbatches={count}")
    return found


def microbatches(row: Row, axes: dict[str, int]) -> int:
    """Returns into how many parts a replica's rows are cut, a row each in a pipeline of which nothing is published."""
    rows = round(row["batch_per_chip"] * row["chips"])
    stated = re.search(
        r"(\d+) accumulation steps|accumulate (\d+)|(\d+) microbatches|(\d+) x \d+ rows", row["parallelism"]
    )
    if stated:
        return min(int(next(filter(None, stated.groups()))), rows)
    replicas = _product({name: size for name, size in axes.items() if name not in ("stage", "tensor", "context")})
    if each := re.search(r"\b(\d+) rows?\b(?! a group)", row["parallelism"]):
        return max(1, rows // replicas // int(each[1]))
    return rows // replicas if "stage" in axes else 1


def mesh_axes(row: Row) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the axes inside a slice and those between slices, by our names."""
    names = {"fsdp_transpose": "fsdp", "pipeline": "stage"}
    axes: dict[str, int] = {}
    dcn: dict[str, int] = {}
    for name, size, place in re.findall(r"\b([a-z_]+)=(\d+)( over DCN)?", row["parallelism"]):
        into, ours = (dcn if place else axes), names.get(name, name)
        # Two axes of theirs may be one of ours.
        into[ours] = into.get(ours, 1) * int(size)
    devices = parse_target(row["target"]).jax_devices // max(1, _product(dcn))
    # An expert axis inside data, fsdp or tensor counts devices twice.
    if _product(axes) > devices and "expert" in axes:
        axes.pop("data", None)
        if "fsdp" in axes:
            axes["fsdp"] //= axes["expert"]
        rest = devices // _product({name: size for name, size in axes.items() if name != "expert"})
        axes["expert"] = min(axes["expert"], rest)
    # What is left, and replicas with a distributed optimizer: gradients are scattered and weights gathered once a step.
    if _product(axes) < devices:
        axes["data"] = axes.get("data", 1) * devices // _product(axes)
    return {name: size for name, size in axes.items() if size > 1} or {"data": 1}, dcn


def remat(text: str) -> str:
    """Returns the arguments of the modifier `remat` for what is published of it."""
    if text in component_names("remat"):
        return f"policy={text}"
    for name in sorted(_POLICIES, key=len, reverse=True):
        if re.match(rf"{re.escape(name)}(?!\w|, \w+_)", text):
            return _POLICIES[name]
    kept: dict[str, list[str]] = {"save": [], "offload": []}
    waiting: list[str] = []
    for word in re.findall(r"[a-z_]+", text.removeprefix("custom:")):
        if word in _TAGS:
            waiting.append(word)
        elif word in ("offloaded", "device") and waiting:
            kept["offload" if word == "offloaded" else "save"] += [tag for each in waiting for tag in _TAGS[each]]
            waiting = []
    parts = [f"{name}=[{','.join(chr(34) + tag + chr(34) for tag in tags)}]" for name, tags in kept.items() if tags]
    return ",".join(parts) or "policy=full"


def component_names(kind: str) -> set[str]:
    """Returns what is catalogued of a kind."""
    return {state.name for state in host().components(kind)}


def model_config(name: str, shape: dict[str, Any]) -> Any:
    """Returns the model of a published shape."""
    if name in _CATALOGUED:
        return kn.component("models", _CATALOGUED[name])()
    if "mla" in shape:
        return deepseek_v3(num_layers=shape["layers"], num_dense_layers=shape["dense_layers"])
    sizes = {
        "num_layers": shape["layers"],
        "input_dim": shape["d_model"],
        "num_heads": shape["heads"],
        "num_kv_heads": shape["kv_heads"],
        "head_dim": shape["head_dim"],
        "hidden_dim": shape["ffn"],
        "vocab_size": shape["vocab"],
    }
    if "global_head_dim" in shape:
        message = f"no model of ours is {name}"
        raise KanawaError(message)
    if "experts" in shape:
        sizes["hidden_dim"] = shape["moe_ffn"]
        return mixtral(**sizes, num_experts=shape["experts"], top_k=shape["experts_per_token"])
    cfg = llama(**sizes, tied=shape["tied_embeddings"])
    if not shape["ffn_gated"]:
        plain = PlainFeedForward.Config(hidden_dim=shape["ffn"], activation=jax.nn.relu)
        cfg.stack.layer.set(feed_forward=plain)
    return cfg


def _product(axes: dict[str, int]) -> int:
    total = 1
    for size in axes.values():
        total *= size
    return total
