"""Whisper: transcripts equal to those of transformers on a small random model, and sound is learned from."""

from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import SpeechBatch
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.recipes.whisper import whisper

FOLDER = Path(__file__).parent.parent / "fixtures" / "whisper"


def test_a_transcript_equals_that_of_transformers():
    stored = HuggingFaceStore().load(FOLDER)
    features, saved = np.load(FOLDER / "logits.npz")["input_features"], np.load(FOLDER / "further.npz")
    model = stored.config.build()
    params, state = unflatten_paths(stored.params), unflatten_paths(stored.state)

    @jax.jit
    def run(params, state, features, prompt):
        memory, _ = kn.functional(model, "encode_features")(params, state, jnp.swapaxes(features, 1, 2))
        return kn.functional(model, "write")(params, state, memory, 16, prompt)[0]

    written, wanted = run(params, state, features, saved["prompt"]), saved["ids"][:, 3:]
    ends = [list(row).index(2) if 2 in row else len(row) for row in wanted]
    assert max(ends) > 4, "transcripts too short to tell anything"
    for ours, theirs, end in zip(np.asarray(written), wanted, ends, strict=True):
        np.testing.assert_array_equal(ours[:end], theirs[:end])
        assert (ours[end:] == 2).all()


def test_it_learns_what_was_said_and_writes_it():
    cfg = whisper(
        num_layers=1, input_dim=32, num_heads=2, num_mels=16, vocab_size=12, max_frames=20, max_length=8,
        prompt_ids=(10, 9), end_id=11,
    )  # fmt: skip
    model = cfg.build()
    params, state = (
        jax.jit(lambda k, of=of: of(model, k))(jax.random.key(0)) for of in (kn.initialize, kn.initial_state)
    )
    seconds = np.arange(6400) / 16_000
    samples = np.stack([np.sin(2 * np.pi * hertz * seconds) for hertz in (300, 700, 1500, 3000)]).astype(np.float32)
    targets = jnp.array([[1, 2, 3], [4, 0, 0], [5, 6, 0], [0, 0, 0]])
    batch = SpeechBatch(samples, jnp.full(4, 6400), targets, (targets > 0).astype(jnp.float32))

    @jax.jit
    def step(params):
        def loss(p):
            return kn.functional(model)(p, state, batch, key=jax.random.key(1), train=True)[1].total_loss()

        value, grads = jax.value_and_grad(loss)(params)
        return (
            jax.tree.map(lambda p, g: p - 0.3 * g / (1e-3 + jnp.sqrt(jnp.mean(g * g))) * 0.02, params, grads),
            value,
            grads,
        )

    after, first, grads = step(params)
    # Adding the same number to all keys changes no attention, so they have no bias; all else has a gradient.
    assert all(float(jnp.abs(g).max()) > 0 for g in flatten_paths(grads).values())
    for _ in range(60):
        after, last, _ = step(after)
    assert float(last) < 0.1 < float(first)
    written = jax.jit(lambda p: kn.functional(model, "transcribe")(p, state, samples, 5)[0])(after)
    np.testing.assert_array_equal(written, [[1, 2, 3, 11, 11], [4, 11, 11, 11, 11], [5, 6, 11, 11, 11], [11] * 5])
