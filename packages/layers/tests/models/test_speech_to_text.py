"""Whisper: transcripts equal to those of transformers on a small random model, and sound is learned from."""

from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import SpeechBatch, Writing
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.recipes.whisper import whisper

FOLDER = Path(__file__).parent.parent / "fixtures" / "whisper"


def writing(rows, prompts, width, **options):
    """Returns rules of the fixture's ids: those from 34 on are languages, tasks and times."""
    prompt_ids, ids = np.full((rows, width), 33, np.int32), np.arange(64)
    for row in range(rows):
        prompt = prompts[row % len(prompts)]
        prompt_ids[row, : len(prompt)] = prompt
    allowed = ~np.isin(ids, [5, 6, 34, 35, 36, 37, 38])
    rules = {
        "prompt_lengths": np.array([len(prompts[row % len(prompts)]) for row in range(rows)], np.int32),
        "choices": np.isin(ids, [34, 35]),
        "allowed": allowed,
        "allowed_first": allowed & ~np.isin(ids, [7, 33]),
        "first_time": np.full(rows, -1, np.int32),
        "last_begin": np.int32(5),
        "temperature": np.zeros(rows, np.float32),
        "seed": np.arange(rows).astype(np.uint32),
    }
    return Writing(prompt_ids, **{**rules, **options})


@pytest.fixture(scope="module")
def written():
    """Returns a function that writes transcripts of the fixture's features, and those of transformers."""
    stored = HuggingFaceStore().load(FOLDER)
    with np.load(FOLDER / "transcripts.npz") as held:
        saved = dict(held)
    model = stored.config.clone().set(end_id=33).build()
    params, state = unflatten_paths(stored.params), unflatten_paths(stored.state)

    @jax.jit
    def run(features, rules):
        memory, _ = kn.functional(model, "encode_features")(params, state, jnp.swapaxes(features, 1, 2))
        return kn.functional(model, "write")(params, state, memory, 12, rules)[0]

    return lambda rules, rows=slice(None): run(saved["input_features"][rows], rules), saved


@pytest.mark.parametrize(
    ("case", "prompt", "timed"),
    [("detected", (3, -1, 37, 39), False), ("timed", (3, -1, 37), True), ("translated", (3, 35, 36), True)],
)
def test_transcripts_equal_those_of_transformers(written, case, prompt, timed):
    write, saved = written
    rows = len(saved["input_features"])
    # Room for longer prompts changes nothing.
    found = write(writing(rows, [prompt], 12, first_time=np.full(rows, 40 if timed else -1, np.int32)))
    np.testing.assert_array_equal(found.prompt_ids[:, : len(prompt)], saved[f"{case}_prompt"])
    wanted = saved[f"{case}_ids"]
    ended = np.cumsum(wanted == 33, axis=1) > 0
    np.testing.assert_array_equal(found.ids[:, : wanted.shape[1]], np.where(ended, -1, wanted))
    np.testing.assert_allclose(found.log_probs, saved[f"{case}_log_probs"], rtol=1e-4)


def test_rows_with_different_prompts_and_draws_share_a_batch(written):
    write, _ = written
    prompts, warm = [(3, 34, 37, 39), (38, 11, 12, 13, 3, 35, 37, 39)], np.array([0, 0.7] * 4, np.float32)
    together = write(writing(8, prompts, 12, temperature=warm))
    alone = [
        write(
            writing(1, [prompts[row % 2]], 12, temperature=warm[row : row + 1], seed=np.array([row], np.uint32)),
            slice(row, row + 1),
        )
        for row in range(4)
    ]
    for row, one in enumerate(alone):
        np.testing.assert_array_equal(together.ids[row], one.ids[0])
    # Draws differ by seed, of which the likeliest ids know nothing.
    other = write(writing(8, prompts, 12, temperature=warm, seed=np.arange(8).astype(np.uint32) + 100))
    assert (np.asarray(other.ids) == np.asarray(together.ids)).all(axis=1).tolist()[::2] == [True] * 4
    assert (np.asarray(other.ids) != np.asarray(together.ids)).any(axis=1)[1::2].any()


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
    written = jax.jit(lambda p: kn.functional(model, "transcribe")(p, state, samples, batch.audio_lengths, 5)[0])(after)
    np.testing.assert_array_equal(written.ids, [[1, 2, 3, -1, -1], [4, -1, -1, -1, -1], [5, 6, -1, -1, -1], [-1] * 5])
