"""Adapter folders as peft writes them: against weights that were merged by hand, and what is refused."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.composition.plain import adapter_factors, from_plain, with_adapter_factors
from kanawa.contracts import StoredModel
from kanawa.errors import KanawaError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.convert.peft import CONFIG, TENSORS, PeftStore, save_adapter
from kanawa_layers.convert.safetensors_file import DTYPES, read_header, write_file
from kanawa_layers.modifiers.weights import LoRAModifier

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: What each adapter changes: projection, layer, rank.
CHANGED = [("self_attn.q_proj", 0, 2), ("self_attn.o_proj", 1, 2), ("mlp.down_proj", 0, 5), ("self_attn.v_proj", 1, 2)]


def write(folder, arrays):
    names = {dtype: name for name, dtype in DTYPES.items()}
    folder.mkdir(exist_ok=True)
    write_file(folder / TENSORS, {n: (names[a.dtype], a.shape) for n, a in arrays.items()}, arrays.__getitem__)


def settings(**values):
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "rank_pattern": {"mlp.down_proj": 5}, "bias": "none"}
    return plain | {"alpha_pattern": {"mlp.down_proj": 7}, "use_dora": False, "modules_to_save": None} | values


def factors(weights):
    """Returns (name of the weight, A, B) of random factors."""
    rng, made = np.random.default_rng(7), []
    for projection, layer, rank in CHANGED:
        name = f"model.layers.{layer}.{projection}"
        outputs, inputs = weights[f"{name}.weight"].shape
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rank, inputs), (outputs, rank)))
        made.append((name, 0.3 * a, 0.3 * b))
    return made


@pytest.fixture(scope="module")
def weights():
    return {n: np.array(e.read(), np.float32) for n, e in read_header(FIXTURES / "llama/model.safetensors").items()}


@pytest.fixture(scope="module")
def stored():
    return HuggingFaceStore().load(FIXTURES / "llama")


@pytest.fixture
def folder(tmp_path, weights):
    arrays = {}
    for name, a, b in factors(weights):
        arrays |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
    write(tmp_path / "adapter", arrays)
    (tmp_path / "adapter" / CONFIG).write_text(json.dumps(settings()))
    return tmp_path / "adapter"


@pytest.mark.parametrize("stabilised", [False, True])
def test_its_factors_are_what_merging_the_tensors_adds(folder, tmp_path, weights, stored, stabilised):
    (folder / CONFIG).write_text(json.dumps(settings(use_rslora=stabilised)))
    merged = dict(weights)
    for name, a, b in factors(weights):
        rank = a.shape[0]
        alpha = 7 if "down_proj" in name else 6
        merged[f"{name}.weight"] = weights[f"{name}.weight"] + alpha / (rank**0.5 if stabilised else rank) * (b @ a)
    shutil.copytree(FIXTURES / "llama", tmp_path / "merged")
    names = {dtype: name for name, dtype in DTYPES.items()}
    write_file(
        tmp_path / "merged" / "model.safetensors",
        {n: (names[a.dtype], a.shape) for n, a in merged.items()},
        merged.__getitem__,
    )
    expected = HuggingFaceStore().load(tmp_path / "merged").params
    adapter = PeftStore().load(folder, stored.config)
    assert PeftStore().holds(folder)
    assert adapter.rank == 5
    assert len(adapter.factors) == len(CHANGED)
    actual = dict(stored.params)
    for path, (a, b) in adapter.factors.items():
        # Layers first, then what each contracts over: all of a but the last axis, all of b but its second.
        change = jax.vmap(lambda a, b: jnp.tensordot(a, b, 1))(a, b)
        actual[f"{path}.weight"] = stored.params[f"{path}.weight"] + change
    for path, array in expected.items():
        np.testing.assert_allclose(actual[path], array, atol=1e-5, err_msg=path)
    tokens = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)
    model = stored.config.build()
    before, after, wanted = (
        kn.functional(model, "predict")(unflatten_paths(dict(p)), {}, tokens)[0]
        for p in (stored.params, actual, expected)
    )
    np.testing.assert_allclose(after, wanted, atol=1e-4)
    assert float(jnp.abs(after - before).max()) > 0.01


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def renamed(old, new):
    return lambda arrays: arrays.__setitem__(new, arrays.pop(old))


WRONG_TENSORS = [
    (renamed(Q, Q.replace("q_proj", "query")), "is there without"),
    (renamed(Q, Q.replace("lora_A", "lora_C")), "is no lora_A or lora_B|is there without"),
    (lambda arrays: arrays.update({"lm_head.weight": arrays[Q]}), "'lm_head.weight' .* is no lora_A or lora_B"),
    (lambda arrays: arrays.update({Q: arrays[Q][:, :3].copy()}), r"has shape \[2, 3\], expected"),
    (lambda arrays: arrays.update({Q: arrays[Q][:1].copy()}), "have ranks"),
    (lambda arrays: arrays.update({Q: arrays[Q].astype(np.int8)}), "has dtype I8, expected F32"),
    (lambda arrays: arrays.update({Q: arrays[Q] * np.float32("nan")}), "NaN or infinite"),
    (lambda arrays: arrays.clear(), "holds no tensors"),
    (
        lambda arrays: arrays.update({n.replace("layers.0", "layers.9"): a for n, a in arrays.items()}),
        "this model has no such projections:(.|\n)*layers.9.self_attn.q_proj",
    ),
]


@pytest.mark.parametrize(("change", "said"), WRONG_TENSORS)
def test_tensors_that_are_no_adapter_of_the_model(folder, stored, change, said):
    arrays = {n: np.array(e.read()) for n, e in read_header(folder / TENSORS).items()}
    change(arrays)
    write(folder, arrays)
    with pytest.raises(KanawaError, match=said):
        PeftStore().load(folder, stored.config)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"peft_type": "IA3"}, "its peft_type is 'IA3', and only LORA"),
        ({"use_dora": True}, "its use_dora is True, which low-rank factors can't express"),
        ({"bias": "all"}, "its bias is all"),
        ({"modules_to_save": ["lm_head"]}, r"its modules_to_save is \['lm_head'\]"),
        ({"init_lora_weights": "pissa_niter_16"}, "its init_lora_weights is pissa_niter_16"),
        ({"alpha_pattern": [1]}, "its alpha_pattern is a list, expected an object"),
        ({"lora_alpha": "many"}, "the alpha of .* is 'many', expected a number"),
        ({"lora_alpha": float("inf"), "alpha_pattern": {}}, "is 'inf', expected a number"),
    ],
)
def test_settings_that_mean_something_else(folder, stored, values, said):
    (folder / CONFIG).write_text(json.dumps(settings(**values)))
    with pytest.raises(KanawaError, match=said):
        PeftStore().load(folder, stored.config)


@pytest.mark.parametrize("file", [CONFIG, TENSORS])
def test_links_out_of_the_folder_and_pickles_are_refused(folder, tmp_path, stored, file):
    (folder / file).rename(tmp_path / "elsewhere")
    (folder / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KanawaError, match="is a link out of its folder"):
        PeftStore().load(folder, stored.config)
    (folder / file).unlink()
    (tmp_path / "elsewhere").rename(folder / file)
    (folder / TENSORS).unlink()
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(KanawaError, match="is a pickle, which may run code when read"):
        PeftStore().load(folder, stored.config)


@pytest.mark.parametrize("ranks", [(4, 4), (2, 3)])
def test_an_adapter_is_written_and_read_back(tmp_path, stored, ranks):
    cfg = stored.config.clone()
    for rank, where in zip(ranks, ("**.attention.query", "**.down"), strict=True):
        cfg = LoRAModifier.Config(rank=rank, alpha=6.0, targets=(where,)).build()(cfg)
    module = cfg.build()
    params = flatten_paths(from_plain(module, unflatten_paths(stored.params), jax.random.key(0)))
    noise = np.random.default_rng(0)
    moved = {p: noise.standard_normal(x.shape).astype(np.float32) if ".adapter." in p else x for p, x in params.items()}
    names = save_adapter(tmp_path / "adapter", StoredModel(cfg, moved))
    assert all(name.startswith("base_model.model.model.layers.") for name in names)
    written = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    assert written["target_modules"] == ["down_proj", "q_proj"]
    assert written["r"] == max(ranks)
    back = PeftStore().load(tmp_path / "adapter", stored.config).factors
    mine = adapter_factors(module, unflatten_paths(moved))
    assert back.keys() == mine.keys()
    for path, (a, b) in mine.items():
        for layer in range(2):
            flat = [
                (x[layer].reshape(-1, x.shape[-1]), y[layer].reshape(y.shape[1], -1)) for x, y in (back[path], (a, b))
            ]
            np.testing.assert_allclose(flat[0][0] @ flat[0][1], flat[1][0] @ flat[1][1], rtol=1e-4, atol=1e-5)
    # Into an adapter of a higher rank: the same change, and room to learn.
    wide = LoRAModifier.Config(rank=8, alpha=2.0).build()(stored.config.clone()).build()
    begun = from_plain(wide, unflatten_paths(stored.params), jax.random.key(1))
    filled = adapter_factors(wide, with_adapter_factors(wide, begun, back))
    for path, (a, b) in back.items():
        np.testing.assert_allclose(
            np.matmul(filled[path][0].reshape(2, -1, 8), filled[path][1].reshape(2, 8, -1)),
            np.matmul(a.reshape(2, -1, a.shape[-1]), b.reshape(2, b.shape[1], -1)), rtol=1e-4, atol=1e-6,
        )  # fmt: skip
    with pytest.raises(KanawaError, match=r"has rank 1, and the stored adapter rank .*set --modify lora:rank="):
        low = LoRAModifier.Config(rank=1).build()(stored.config.clone()).build()
        with_adapter_factors(low, from_plain(low, unflatten_paths(stored.params), jax.random.key(1)), back)
    with pytest.raises(KanawaError, match="the model has no adapter to write"):
        save_adapter(tmp_path / "none", stored)


def test_peft_computes_with_what_is_written_what_we_do(tmp_path, stored):
    """The folder fixtures/peft is what is written here; make_peft_logits.py had peft compute its logits."""
    cfg = LoRAModifier.Config(rank=2, alpha=6.0).build()(stored.config.clone())
    module, draw = cfg.build(), np.random.default_rng(0)
    params = dict(stored.params)
    for path, spec in sorted(flatten_paths(kn.param_specs(module)).items()):
        if ".adapter." in path:
            params[path] = (0.2 * draw.standard_normal(spec.shape)).astype(np.float32)
    save_adapter(tmp_path / "adapter", StoredModel(cfg, params))
    made = FIXTURES / "peft"
    for name in (CONFIG, TENSORS):
        assert (tmp_path / "adapter" / name).read_bytes() == (made / name).read_bytes()
    with np.load(made / "logits.npz") as held:
        theirs = dict(held)
    logits = kn.functional(module, "predict")(unflatten_paths(params), {}, theirs["ids"])[0]
    np.testing.assert_allclose(logits, theirs["logits"], atol=2e-5)
    plain = kn.functional(stored.config.build(), "predict")(unflatten_paths(stored.params), {}, theirs["ids"])[0]
    assert np.abs(plain - theirs["logits"]).max() > 0.1
