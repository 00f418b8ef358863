"""A decoder that fills in hidden tokens, by commands: trained, resumed exactly, evaluated, and asked for text."""

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from kanawa.cli.main import main
from kanawa.contracts import Sequences
from kanawa.errors import CompositionError, UsageError
from kanawa_layers.modifiers.masked_diffusion import MaskedDiffusionLoss
from kanawa_layers.recipes.llama import llama
from kanawa_runtime.serve.generate import SamplingConfig
from kanawa_runtime.serve.unmasking import Unmasker

SMALL = {
    "model.input_dim": 48,
    "model.stack.num_layers": 1,
    "model.vocab_size": 384,
    "data.source.tokenizer": "kanawa_runtime.data.tokenizers.bytes:ByteTokenizer",
    "data.sequence_length": 32,
    "batch_size": 8,
    "steps": 20,
    "evaluation.every_steps": 5,
    "evaluation.max_batches": 4,
    "evaluation.final_batches": 4,
    "evaluation.trigram_baseline": False,
    "checkpoints.every_steps": 10,
    "model.loss.mask_id": 259,
    "sample_prompt": "def",
}
STOP, MASK = 0, 20
GREEDY = SamplingConfig(temperature=0)


def trained(folder, **more):
    return kn.train("quickstart", run=folder, modify="masked-diffusion", set=SMALL, on="cpu", progress=False, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("diffusion") / "run")


def test_the_held_out_bound_falls_and_samples_are_written(run):
    bounds = [event["nats_per_byte"] for event in run.events if event["event"] == "eval"]
    assert bounds[-1] < bounds[0] - 0.1, bounds
    samples = [event for event in run.events if event["event"] == "sample"]
    assert samples and all("error" not in event for event in samples)


@pytest.mark.nightly
def test_a_resumed_run_has_the_same_losses(run, tmp_path):
    trained(tmp_path / "cut", steps=10)
    assert trained(tmp_path / "cut").losses == run.losses


def test_generate_fills_in_by_steps_and_by_blocks(run, capsys):
    text = run.generate("def ", max_tokens=12, temperature=0)
    assert 0 < len(text.token_ids) <= 12 and np.all(np.array(text.logprobs) <= 0)
    assert 259 not in text.token_ids
    fewer = run.generate("def ", max_tokens=12, temperature=0.8, denoising_steps=3, block_tokens=4, seed=1)
    assert (
        fewer.token_ids
        == run.generate(
            ["def ", "import os"], max_tokens=12, temperature=0.8, denoising_steps=3, block_tokens=4, seed=1
        )[0].token_ids
    )
    folder = str(run.directory)
    assert main(["generate", folder, "--prompt", "def ", "--max-tokens", "12", "--temperature", "0"]) == 0
    assert f"def {text.text}" in capsys.readouterr().out
    with pytest.raises(UsageError, match="denoising_steps is 13, expected 1 to 12"):
        run.generate("def ", max_tokens=12, denoising_steps=13)
    with pytest.raises(UsageError, match="an engine continues texts"):
        run.engine()


def test_a_model_and_data_that_hide_different_tokens_are_refused(run):
    with pytest.raises(CompositionError, match="model.loss takes 7 for a hidden token, and data hides tokens as 2048"):
        kn.compose("quickstart", modifiers=["masked-diffusion"], overrides=["model.loss.mask_id=7"])


@pytest.fixture(scope="module")
def filler():
    cfg = llama(num_layers=1, input_dim=16, num_heads=2, num_kv_heads=1, hidden_dim=24, vocab_size=21, tied=False)
    model = MaskedDiffusionLoss.Config(mask_id=MASK).build()(cfg).set(vocab_size=21).build()
    return Unmasker(model, kn.initialize(model, jax.random.key(1)))


def by_hand(filler, prompt, new, per_step):
    """Returns what greedy filling writes: the surest of the hidden places, `per_step` at a time, in numpy."""
    row = np.array([*prompt, *[MASK] * new], np.int32)
    decode = kn.functional(filler.model, "decode")
    while (row == MASK).any():
        logits = np.array(decode(filler.params, {}, jnp.asarray(row[None]), Sequences(), None)[0][0][0], np.float64)
        logits[:, MASK] = -np.inf
        sure = logits.max(-1) - np.log(np.exp(logits).sum(-1))
        hidden = np.flatnonzero(row == MASK)
        chosen = hidden[np.argsort(-sure[hidden], kind="stable")[:per_step]]
        row[chosen] = logits[chosen].argmax(-1)
    return row[len(prompt) :].tolist()


@pytest.mark.parametrize("per_step", [1, 2, 3])
def test_greedy_filling_equals_the_same_in_numpy_alone_and_in_company(filler, per_step):
    prompts = [[1, 2, 3], [5], [7, 8, 9, 10, 11]]
    sampling = GREEDY.clone().set(denoising_steps=6 // per_step)
    together = filler.generate(prompts, 6, sampling)
    for prompt, one in zip(prompts, together, strict=True):
        assert one.token_ids == by_hand(filler, prompt, 6, per_step)


def test_blocks_are_filled_from_left_to_right_and_the_text_ends_at_a_stop(filler):
    sampling = GREEDY.clone().set(denoising_steps=6, block_tokens=2)
    first = by_hand(filler, [1, 2, 3], 6, 6)  # all at once, to compare with
    pieces = list(filler.stream([[1, 2, 3]], 6, sampling))
    lengths = [len(piece[0].token_ids) for piece in pieces]
    assert lengths[1] >= 2 and lengths[3] >= 4 and lengths[-1] == 6
    assert lengths == sorted(lengths) and all(len(piece) == 1 for piece in pieces)
    stop = pieces[-1][0].token_ids[1]
    ended = filler.generate([[1, 2, 3]], 6, sampling, [stop])[0]
    assert (
        ended.finish_reason == "stop"
        and ended.token_ids == pieces[-1][0].token_ids[: pieces[-1][0].token_ids.index(stop)]
    )
    assert len(first) == 6
