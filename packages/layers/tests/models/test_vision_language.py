"""Language models with pictures: which token sees what and stands where, decoding, and names of older folders."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import ImageChatBatch, Sequences
from kanawa.errors import ConfigError, ModuleError
from kanawa_layers.attention.ring_cache import RingCache
from kanawa_layers.convert.folder import open_folder
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.positions.of_pictures import rest_of_picture
from kanawa_layers.recurrent.lstm import LSTM
from safetensors.numpy import save_file

FIXTURES = Path(__file__).parent.parent / "fixtures"
FAMILIES = ("llava", "gemma3_vision", "qwen3_vl", pytest.param("qwen3_vl_moe", marks=pytest.mark.nightly))


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return loaded(request.param)


def loaded(family, **fields):
    stored = HuggingFaceStore().load(FIXTURES / family)
    cfg = stored.config.clone()
    if cfg.grid_coordinates:
        cfg.tower.set(picture_size=(24, 16))
    for _, node in cfg.walk():
        if "scan" in node.fields():
            node.set(scan=False)
    return cfg.set(**fields).build(), unflatten_paths(stored.params)


def pictures_of(built, count):
    shape = built.picture_tokens(built.config).shape
    return np.random.default_rng(3).integers(0, 256, (count, *shape)).astype(np.uint8)


def ids_of(built, *parts):
    """Ids in which None is a picture."""
    read = built.picture_tokens(built.config)
    picture = np.full(read.num_tokens, read.token_id)
    return np.concatenate([picture if part is None else part for part in parts]).astype(np.int32)


def test_packed_rows_have_the_loss_of_their_conversations_alone(model):
    built, params = model
    one, other = pictures_of(built, 2)
    first, second = ids_of(built, [4, 5], None, [6, 7, 8]), ids_of(built, None, [9, 10, 11, 12])
    token = built.config.image_token_id

    def loss(ids, pictures, segments):
        starts = [np.flatnonzero(segments == s)[0] for s in segments]
        positions = (np.arange(len(ids)) - starts).astype(np.int32)
        weights = ((ids != token) & (np.append(segments[1:], 0) == segments)).astype(np.float32)
        row = (ids, np.roll(ids, -1), positions, segments.astype(np.int32), weights)
        batch = ImageChatBatch(np.stack(pictures)[None], *(array[None] for array in row))
        _, outputs = jax.jit(kn.functional(built))(params, {}, batch)
        entry = next(entry for path, entry in outputs.losses.items() if "balance" not in path)
        return np.asarray(entry.total), float(weights.sum())

    alone = [loss(first, [one], np.ones(len(first))), loss(second, [other], np.ones(len(second)))]
    segments = np.concatenate([np.ones(len(first)), np.full(len(second), 2)])
    together = loss(np.concatenate([first, second]), [one, other], segments)
    swapped = loss(np.concatenate([first, second]), [other, one], segments)
    np.testing.assert_allclose(together[0], alone[0][0] + alone[1][0], rtol=1e-5)
    assert abs(swapped[0] - together[0]) > 0.1


def decoded(built, params, ids, pictures, cuts):
    """Logits of a row decoded in calls that end at `cuts`, with a cache."""
    read = built.picture_tokens(built.config)
    patches, _ = jax.jit(kn.functional(built, "encode_pictures"))(params, {}, pictures)
    is_picture = ids == read.token_id
    embeddings = np.full((len(ids), patches.shape[-1]), 7.0, np.float32)  # arbitrary where there is no picture
    embeddings[is_picture] = np.concatenate(np.asarray(patches))
    table = built.picture_coordinates(built.config, ids)
    spec = built.cache_spec(1, len(ids), "float32")
    caches = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec, is_leaf=lambda s: isinstance(s, kn.ParamSpec))
    decode, parts, start = jax.jit(kn.functional(built, "decode")), [], 0
    for end in cuts:
        seen = {}
        if is_picture[start:end].any():
            seen = {"embeddings": embeddings[None, start:end], "is_embedded": is_picture[None, start:end]}
        if table is not None:
            seen["coordinates"] = table[None, start:end]
        sequences = Sequences(lengths=np.array([start], np.int32), **seen)
        (logits, caches), _ = decode(params, {}, ids[None, start:end], sequences, caches)
        parts.append(np.asarray(logits[0]))
        start = end
    return np.concatenate(parts)


def with_rings(built):
    cfg = built.config.clone()
    for block in cfg.language.stack.pattern:
        block.attention.set(cache=RingCache.Config())
    return cfg.build()


def test_cached_decoding_is_the_whole_forward(model):
    check_decoding(*model)


def test_a_ring_of_the_window_shows_a_picture_whole():
    built, params = loaded("gemma3_vision")
    check_decoding(with_rings(built), params)


def check_decoding(built, params):
    pictures = pictures_of(built, 2)
    ids = ids_of(built, [4, 5, 9], None, [6, 7, 8], None, [3, 2, 11, 5])
    whole, _ = jax.jit(kn.functional(built, "predict"))(params, {}, ids[None], pictures[None])
    count = built.picture_tokens(built.config).num_tokens
    # The first call ends in front of the second picture, which comes in one call; then one token at a time.
    first, second = 3 + count + 2, 2 * count + 7
    found = decoded(built, params, ids, pictures, (first, second, *range(second + 1, len(ids) + 1)))
    np.testing.assert_allclose(found, np.asarray(whole[0]), atol=2e-5)


def test_tokens_see_the_rest_of_their_own_picture_alone():
    is_picture = np.array([[0, 1, 1, 1, 0, 1, 1, 1, 1]], bool)
    positions = np.array([[0, 1, 2, 3, 4, 5, 6, 0, 1]], np.int32)  # another sequence begins at the eighth
    assert rest_of_picture(is_picture, positions).tolist() == [[0, 2, 1, 0, 0, 1, 0, 1, 0]]


def test_a_picture_is_seen_from_its_first_token_on():
    (built, params), (blind, _) = loaded("gemma3_vision"), loaded("gemma3_vision", both_ways=False)
    ids = ids_of(built, [4, 5], None, [6, 7])[None]
    pictures = pictures_of(built, 1)
    both, one = (jax.jit(kn.functional(m, "predict"))(params, {}, ids, pictures)[0][0] for m in (built, blind))
    np.testing.assert_allclose(both[:2], one[:2], atol=1e-5)
    assert np.abs(both[2] - one[2]).max() > 0.1
    assert built.picture_tokens(built.config).both_ways and not blind.picture_tokens(blind.config).both_ways


def test_coordinates_go_on_after_a_picture_from_its_longer_side():
    built, _ = loaded("qwen3_vl")  # three rows of two tokens
    ids = ids_of(built, [4, 5], None, [6], None, [7])
    table = built.picture_coordinates(built.config, ids)
    assert table[:2].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert table[2:8].tolist() == [[2, 2 + r, 2 + c] for r in range(3) for c in range(2)]
    assert table[8].tolist() == [5, 5, 5] and table[9].tolist() == [6, 6, 6]
    assert table[-1].tolist() == [9, 9, 9]
    for end in range(1, len(ids)):
        np.testing.assert_array_equal(built.picture_coordinates(built.config, ids[:end]), table[:end])
    assert loaded("llava")[0].picture_coordinates(loaded("llava")[0].config, ids) is None


def test_pictures_of_another_size_are_read_with_their_own_grid():
    built, params = loaded("qwen3_vl")
    small = np.random.default_rng(0).integers(0, 256, (1, 8, 24, 3)).astype(np.uint8)
    ids = np.array([[4, 63, 63, 63, 5]], np.int32)  # a row of three tokens
    logits, _ = jax.jit(kn.functional(built, "predict"))(params, {}, ids, small)
    turned, _ = jax.jit(kn.functional(built, "predict"))(params, {}, ids, small.transpose(0, 2, 1, 3))
    assert np.isfinite(logits).all() and np.abs(logits - turned).max() > 0.01


def test_what_does_not_fit_is_refused():
    built, params = loaded("qwen3_vl")
    ids = ids_of(built, None)[None]
    missing = Sequences(embeddings=np.zeros((1, 6, 96), np.float32), is_embedded=np.ones((1, 6), bool))
    with pytest.raises(ModuleError, match="need sequences.coordinates"):
        kn.functional(built, "decode")(params, {}, ids, missing, None)
    wrong = missing._replace(embeddings=np.zeros((1, 6, 33), np.float32), coordinates=np.zeros((1, 6, 3), np.int32))
    with pytest.raises(ModuleError, match="embeddings have 33 channels, expected 32 and as many"):
        kn.functional(built, "decode")(params, {}, ids, wrong, None)
    cfg = built.config.clone()
    cfg.tower.set(picture_size=(20, 16))
    with pytest.raises(ConfigError, match=r"window \(2\) doesn't divide the 5 x 4 patches"):
        cfg.freeze()
    cfg = loaded("gemma3_vision")[0].config.clone()
    cfg.set(written=("a", 62))
    cfg.language.stack.pattern[0].set(attention=LSTM.Config())
    with pytest.raises(ConfigError, match=r"written lacks image_token_id \(63\)(.|\n)*LSTM.Config, which can't show"):
        cfg.freeze()


@pytest.mark.parametrize("family", ["llava", "gemma3_vision"])
def test_folders_from_before_are_read_alike(family, tmp_path):
    shutil.copytree(FIXTURES / family, tmp_path / "old")
    entries = open_folder(FIXTURES / family).tensors
    old = {name.replace("vision_tower.", "vision_tower.vision_model."): e.read() for name, e in entries.items()}
    save_file(old, tmp_path / "old" / "model.safetensors")
    new, read = HuggingFaceStore().load(FIXTURES / family).params, HuggingFaceStore().load(tmp_path / "old").params
    assert jax.tree.all(jax.tree.map(np.array_equal, dict(new), dict(read)))


def test_a_step_lowers_the_loss_of_each(model):
    built, params = model
    ids = ids_of(built, [4, 5], None, [6, 7, 8, 9])
    rows = [np.stack([ids, ids]), np.stack([np.roll(ids, -1)] * 2)]
    weights = (rows[1] < 60).astype(np.float32)
    batch = ImageChatBatch(pictures_of(built, 2)[:, None], *rows, None, np.ones_like(rows[0]), weights)

    @jax.jit
    def step(params):
        def loss(params):
            return kn.functional(built)(params, {}, batch, key=jax.random.key(0), train=True)[1].total_loss()

        value, grads = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 3e-3 * g, params, grads), grads

    first, params, grads = step(params)
    second, _, _ = step(params)
    assert second < first
    # Every part learns, but the norm that comes after LLaVA's last, unused layer.
    still = {path for path, grad in flatten_paths(grads).items() if not np.abs(grad).max()}
    assert still <= {"tower.stack.norm.bias", "tower.stack.norm.scale"}
