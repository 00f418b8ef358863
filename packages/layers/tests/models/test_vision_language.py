"""A language model with pictures: which token sees which patch, and names of older folders."""

import shutil
from pathlib import Path

import jax
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import unflatten_paths
from kanawa.contracts import ImageChatBatch, Sequences
from kanawa_layers.convert.folder import open_folder
from kanawa_layers.convert.huggingface import HuggingFaceStore
from safetensors.numpy import save_file

FOLDER = Path(__file__).parent.parent / "fixtures" / "llava"
PICTURE = 63


@pytest.fixture(scope="module")
def model():
    stored = HuggingFaceStore().load(FOLDER)
    built = stored.config.clone().build()
    return built, unflatten_paths(stored.params)


def _pictures(count):
    return np.random.default_rng(3).integers(0, 256, (count, 12, 12, 3)).astype(np.uint8)


def _ids(*parts):
    return np.concatenate([np.full(9, PICTURE) if part is None else part for part in parts]).astype(np.int32)


def test_packed_rows_have_the_loss_of_their_conversations_alone(model):
    built, params = model
    one, other = _pictures(2)
    first, second = _ids([4, 5], None, [6, 7, 8]), _ids(None, [9, 10, 11, 12])

    def loss(ids, pictures, segments):
        starts = [np.flatnonzero(segments == s)[0] for s in segments]
        positions = (np.arange(len(ids)) - starts).astype(np.int32)
        weights = ((ids != PICTURE) & (np.append(segments[1:], 0) == segments)).astype(np.float32)
        row = (ids, np.roll(ids, -1), positions, segments.astype(np.int32), weights)
        batch = ImageChatBatch(np.stack(pictures)[None], *(array[None] for array in row))
        _, outputs = jax.jit(kn.functional(built))(params, {}, batch)
        (entry,) = outputs.losses.values()
        return np.asarray(entry.total), float(weights.sum())

    alone = [loss(first, [one], np.ones(len(first))), loss(second, [other], np.ones(len(second)))]
    segments = np.concatenate([np.ones(len(first)), np.full(len(second), 2)])
    together = loss(np.concatenate([first, second]), [one, other], segments)
    swapped = loss(np.concatenate([first, second]), [other, one], segments)
    np.testing.assert_allclose(together[0], alone[0][0] + alone[1][0], rtol=1e-5)
    assert abs(swapped[0] - together[0]) > 0.1


def test_decoding_with_embeddings_is_the_whole_forward(model):
    built, params = model
    pictures = _pictures(1)
    ids = _ids([4, 5], None, [6, 7, 8])[None]
    whole, _ = jax.jit(kn.functional(built, "predict"))(params, {}, ids, pictures)
    patches, _ = jax.jit(kn.functional(built, "encode_pictures"))(params, {}, pictures)
    embeddings = np.zeros((1, ids.shape[1], patches.shape[-1]), np.float32)
    embeddings[ids == PICTURE] = patches[0]
    sequences = Sequences(embeddings=embeddings, is_embedded=ids == PICTURE)
    (logits, _), _ = jax.jit(kn.functional(built, "decode"))(params, {}, ids, sequences, None)
    np.testing.assert_allclose(logits, whole, atol=1e-5)


def test_folders_from_before_are_read_alike(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "old")
    entries = open_folder(FOLDER).tensors
    old = {name.replace("vision_tower.", "vision_tower.vision_model."): e.read() for name, e in entries.items()}
    save_file(old, tmp_path / "old" / "model.safetensors")
    new, read = HuggingFaceStore().load(FOLDER).params, HuggingFaceStore().load(tmp_path / "old").params
    assert jax.tree.all(jax.tree.map(np.array_equal, dict(new), dict(read)))
