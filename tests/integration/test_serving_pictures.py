"""Chats about pictures in the engine: tokens of the whole forward, pages shared by content alone, and preemption."""

import dataclasses
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
import pytest
from asking import ids_of, outputs_of
from kanawa.arrays.plan import ExecutionPlan
from kanawa.arrays.shardings import param_shardings
from kanawa.arrays.tree import unflatten_paths
from kanawa.contracts import DeviceMesh, Environment, Sequences, StoredAdapter
from kanawa.errors import UsageError
from kanawa.module import param_specs
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.models.vision_language import VisionLanguageModel
from kanawa_layers.positions.rotary import Rotary
from kanawa_layers.recipes.clip import image_tower
from kanawa_layers.recipes.llama import llama
from kanawa_layers.recipes.llava import earlier_tower, llava
from kanawa_parallel.modifiers import strategies_for
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.engine import LLMEngine
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.engine.request import Request, RequestError, SamplingParams
from kanawa_runtime.serve.generate import Generator, SamplingConfig

FIXTURES = Path(__file__).resolve().parents[2] / "packages/layers/tests/fixtures"
VOCAB, MARK, PATCHES = 64, 63, 9
SIZES = {
    "max_sequences": 4, "max_length": 96, "page_size": 4, "prefill_tokens": 16, "max_batched_tokens": 40,
    "batch_sizes": (4,), "page_widths": (24,), "prefill_sizes": (8,), "prefill_rows": (1, 4), "max_logprobs": 2,
    "max_queued": 200,
}  # fmt: skip
GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


def pictures(count, seed=0):
    made = np.random.default_rng(seed).integers(0, 256, (count, 12, 12, 3)).astype(np.uint8)
    return [Picture.of(one) for one in made]


def prompt(*parts):
    """Returns the ids of numbers and lists, and of None: a picture."""
    return tuple(itertools.chain.from_iterable([MARK] * PATCHES if part is None else part for part in parts))


@pytest.fixture(scope="module")
def model():
    tower = image_tower(num_layers=2, input_dim=16, num_heads=2, patch_size=4, image_size=12)
    language = llama(num_layers=2, input_dim=32, num_heads=4, num_kv_heads=2, hidden_dim=48, vocab_size=VOCAB)
    built = llava(earlier_tower(tower, 1), language, tower_dim=16, image_token_id=MARK).build()
    params = jax.jit(lambda key: kn.initialize(built, key))(jax.random.key(0))
    # Pictures that say something: what a random tower and projector make of them is small beside words.
    params["projector"] = jax.tree.map(lambda x: 6 * x, params["projector"])
    return built, params


@pytest.fixture(scope="module")
def whole(model):
    """Returns the likeliest tokens after a prompt by the model's whole forward, one at a time."""
    built, params = model
    predict = jax.jit(kn.functional(built, "predict"))

    def tokens(ids, seen, count, params=params):
        ids, images = list(ids), np.stack([one.pixels for one in seen])[None]
        for _ in range(count):
            padded = np.zeros((1, 96), np.int32)
            padded[0, : len(ids)] = ids
            logits, _ = predict(params, {}, padded, images)
            ids.append(int(jnp.argmax(logits[0, len(ids) - 1])))
        return ids[-count:]

    return tokens


@pytest.fixture(scope="module")
def engine(model):
    with LLMEngine(*model, config=EngineConfig(**SIZES)) as built:
        yield built
        built.check_pages()


def answers(engine, requests):
    return {name: ids_of(outputs) for name, outputs in outputs_of(engine, requests).items()}


def test_greedy_tokens_are_those_of_the_whole_forward(engine, whole):
    one, other = pictures(2)
    text = [int(i) for i in np.random.default_rng(1).integers(0, 62, 30)]
    cases = {
        "begins": (prompt(None, text[:3]), (one,)),
        "over chunks": (prompt(text[:13], None, text[3:9]), (one,)),
        "two, beside each other": (prompt(text[:5], None, None, text[:2]), (one, other)),
        "two, exchanged": (prompt(text[:5], None, None, text[:2]), (other, one)),
        "ends": (prompt(text[:20], None), (other,)),
        "the same twice": (prompt(None, text[:9], None, text[:4]), (one, one)),
    }
    requests = [Request(id=name, prompt_ids=ids, pictures=seen, sampling=GREEDY) for name, (ids, seen) in cases.items()]
    requests.append(Request(id="text", prompt_ids=tuple(text), sampling=GREEDY))
    given = answers(engine, requests)
    for name, (ids, seen) in cases.items():
        assert given[name] == whole(ids, seen, 6), name
    assert given["two, beside each other"] != given["two, exchanged"]


def test_pages_are_shared_by_content_alone(engine):
    one, other = pictures(2, seed=5)
    again = Picture.of(one.pixels.copy())
    ids = prompt(range(1, 6), None, range(6, 12))

    def asked(name, *seen):
        before = engine.stats()
        last = outputs_of(engine, [Request(id=name, prompt_ids=ids, pictures=seen, sampling=GREEDY)])[name]
        after = engine.stats()
        names = ("prefix_cache_hits", "pictures_encoded", "picture_cache_hits")
        return ids_of(last), last[0].cached_tokens, {name: after[name] - before[name] for name in names}

    first, cached, counted = asked("first", one)
    assert cached == 0
    assert counted == {"prefix_cache_hits": 0, "pictures_encoded": 1, "picture_cache_hits": 0}
    # Of 20 tokens in pages of 4 the last one is computed again; the picture lies in pages that are shared.
    same, cached, counted = asked("same", again)
    assert (same, cached) == (first, 16)
    assert counted == {"prefix_cache_hits": 16, "pictures_encoded": 0, "picture_cache_hits": 0}
    # The page before the picture is the same, and the next one has a token of it.
    different, cached, counted = asked("other", other)
    assert cached == 4
    assert different != first
    assert counted["pictures_encoded"] == 1
    # The same picture in another place: other pages, and the features that are there already.
    ids = prompt(range(1, 7), None, range(6, 12))
    _, cached, counted = asked("moved", one)
    assert cached == 4
    assert counted == {"prefix_cache_hits": 4, "pictures_encoded": 0, "picture_cache_hits": 1}


def test_mixed_requests_get_what_each_gets_alone(engine, model):
    """More pictures than there are places, few pages, and sequences that are preempted."""
    count, rng = 24, np.random.default_rng(3)
    seen = pictures(12, seed=9)
    requests = []
    for number in range(count):
        parts = [rng.integers(1, 62, rng.integers(1, 9)).tolist()]
        own = [seen[i] for i in rng.integers(0, len(seen), number % 3)]
        for _ in own:
            parts += [None, rng.integers(1, 62, rng.integers(1, 9)).tolist()]
        sampling = SamplingParams(max_tokens=12, temperature=0.0)
        requests.append(Request(id=str(number), prompt_ids=prompt(*parts), pictures=tuple(own), sampling=sampling))
    alone = {request.id: answers(engine, [request])[request.id] for request in requests}
    tight = EngineConfig(**{**SIZES, "num_pages": 26, "picture_cache_bytes": 1})
    with LLMEngine(*model, config=tight) as built:
        together = answers(built, requests)
        stats = built.stats()
        built.check_pages()
    assert together == alone
    assert stats["num_preemptions"] > 0
    # Places were taken from others.
    assert stats["pictures_encoded"] > len(seen)


def test_other_weights_make_other_features(engine, model, whole):
    _, params = model
    (one,) = pictures(1)
    request = Request(id="asked", prompt_ids=prompt(range(1, 4), None, range(4, 6)), pictures=(one,), sampling=GREEDY)
    changed = {**params, "projector": jax.tree.map(jnp.negative, params["projector"])}
    before = answers(engine, [request])
    engine.load(changed)
    during = answers(engine, [request])
    engine.load(params)
    assert engine.stats()["compilations"] == 0
    assert before != during
    assert during["asked"] == whole(request.prompt_ids, (one,), 6, changed)
    assert answers(engine, [request]) == before


def test_scores_of_prompts_with_pictures(engine, model):
    built, params = model
    (one,) = pictures(1, seed=4)
    ids = prompt(range(1, 6), None, range(6, 12))
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    asked = Request(id="scored", prompt_ids=ids, pictures=(one,), sampling=sampling)
    (output, *_) = outputs_of(engine, [asked])["scored"]
    predict = jax.jit(kn.functional(built, "predict"))
    logits, _ = predict(params, {}, np.asarray([ids], np.int32), one.pixels[None])
    wanted = jax.nn.log_softmax(logits[0, :-1])[np.arange(len(ids) - 1), np.asarray(ids[1:])]
    got = [each.logprob for each in output.prompt_logprobs[1:]]
    np.testing.assert_allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("ids", "count", "shape", "says"),
    [
        (prompt([1], None), 0, (12, 12, 3), r"has 9 picture tokens \(63\), and 0 pictures of 9 each take 0"),
        (prompt([1, 2]), 1, (12, 12, 3), "0 picture tokens"),
        (prompt([1], None), 2, (12, 12, 3), "2 pictures of 9 each take 18"),
        (prompt([1], [MARK] * 4, [5], [MARK] * 5), 1, (12, 12, 3), "the tokens of picture 1 don't follow each other"),
        (prompt([1], None), 1, (8, 12, 3), r"picture 1 has the shape \[8, 12, 3\], and the model reads \[12, 12, 3\]"),
    ],
)
def test_pictures_that_do_not_fit_the_prompt(engine, ids, count, shape, says):
    seen = tuple(Picture.of(np.zeros(shape, np.uint8)) for _ in range(count))
    with pytest.raises(RequestError, match=says) as caught:
        engine.submit(Request(id="bad", prompt_ids=ids, pictures=seen), print)
    assert caught.value.field == "pictures"


@pytest.mark.nightly
def test_a_mesh_gives_the_tokens_of_one_device(engine, model):
    built, params = model
    strategies = [cfg.build() for cfg in strategies_for({"tensor": 2})]
    plan = ExecutionPlan(
        param_rules=tuple(rule for s in strategies for rule in s.param_rules()),
        activation_rules=tuple(rule for s in strategies for rule in s.activation_rules()),
    )
    where = Environment(plan, DeviceMesh.Config(axes={"tensor": 2}).build().mesh(jax.devices()[:2]))
    with where.active():
        placed = jax.device_put(params, param_shardings(param_specs(built), plan.param_rules, where.mesh))
    seen = pictures(3, seed=8)
    requests = [
        Request(
            id=str(i),
            prompt_ids=prompt(range(1, 4 + i), None, [5], None, [6]),
            pictures=(one, seen[0]),
            sampling=GREEDY,
        )
        for i, one in enumerate(seen)
    ]
    with LLMEngine(built, placed, environment=where, config=EngineConfig(**SIZES)) as spread:
        assert answers(spread, requests) == answers(engine, requests)


class Turned(VisionLanguageModel):
    """Its tokens have three coordinates, as M-RoPE's: time, row and column."""

    class Config(VisionLanguageModel.Config):
        pass

    @classmethod
    def picture_coordinates(cls, cfg, input_ids):
        side, at, made = 3, 0, []
        patches = np.stack(np.unravel_index(np.arange(PATCHES), (1, side, side)), axis=1)
        place = 0
        while place < len(input_ids):
            one = patches if input_ids[place] == cfg.image_token_id else np.zeros((1, 3), int)
            made.append(one + at)
            at, place = at + one.max() + 1, place + len(one)
        return np.concatenate(made).astype(np.int32)

    def predict_at(self, input_ids, images, coordinates):
        sequences = self._seeing(input_ids, images, Sequences(coordinates=coordinates))
        x, _ = self.language.stack(self.embed(input_ids, sequences), sequences)
        return self.logits(x)


def test_adapters_of_what_pictures_pass_through_are_refused(model):
    """Features of a picture are shared by all requests, those with another adapter too."""
    built, params = model
    sizes = {**SIZES, "adapter_slots": 1, "adapter_rank": 2}
    engine = LLMEngine(built, params, config=EngineConfig(**sizes))
    rng = np.random.default_rng(0)

    def adapter(path, width, heads):
        a, b = rng.normal(size=(2, width, 2)), rng.normal(size=(2, 2, *heads))
        return StoredAdapter(factors={path: (a.astype(np.float32), b.astype(np.float32))})

    with pytest.raises(UsageError, match="changes tower.stack.layer.attention.query.*one for all adapters"):
        engine.add_adapter("sees", adapter("tower.stack.layer.attention.query", 16, (2, 8)))
    engine.add_adapter("speaks", adapter("language.stack.layer.attention.query", 32, (4, 8)))
    assert engine.adapters == ("speaks",)


def test_coordinates_of_pictures_reach_every_step(model):
    """Chunks, preempted sequences and decoding have them; so does the generator of `kanawa generate`."""
    built, params = model
    fields = {name: getattr(built.config, name).clone() for name in ("tower", "projector", "language")}
    kn.replace(fields["language"], target=Rotary, edit=lambda node: node.set(sections=(1, 1, 2)))
    sizes = {"vocab_size": VOCAB, "input_dim": 32, "tower_dim": 16, "image_token_id": MARK}
    turned = Turned.Config(**sizes, **fields).build()
    predict = jax.jit(kn.functional(turned, "predict_at"))
    rng, seen = np.random.default_rng(2), pictures(4, seed=6)
    requests = []
    for number in range(8):
        words = [rng.integers(1, 62, rng.integers(1, 12)).tolist() for _ in range(3)]
        own = (seen[number % 4], seen[(number + 1) % 4])[: number % 3]
        ids = prompt(words[0], *(part for one in words[1 : 1 + len(own)] for part in (None, one)))
        sampling = SamplingParams(max_tokens=9, temperature=0.0)
        requests.append(Request(id=str(number), prompt_ids=ids, pictures=own, sampling=sampling))
    with LLMEngine(turned, params, config=EngineConfig(**{**SIZES, "num_pages": 26})) as engine:
        given = answers(engine, requests)
        assert engine.stats()["num_preemptions"] > 0
    for request in requests[1:5]:
        ids = list(request.prompt_ids)
        images = [one.pixels for one in request.pictures] or [np.zeros((12, 12, 3), np.uint8)]
        for token in given[request.id]:
            coordinates = np.zeros((1, 96, 3), np.int32)
            coordinates[0, : len(ids)] = Turned.picture_coordinates(turned.config, np.asarray(ids))
            padded = np.zeros((1, 96), np.int32)
            padded[0, : len(ids)] = ids
            logits, _ = predict(params, {}, padded, np.stack(images)[None], coordinates)
            assert int(jnp.argmax(logits[0, len(ids) - 1])) == token, request.id
            ids.append(token)
    plain = answers_of_plain(model, requests[2])
    assert given["2"] != plain
    generator = Generator(turned, params)
    two = [requests[1], requests[2]]
    greedy = SamplingConfig(temperature=0.0)
    prompts, shown = [list(r.prompt_ids) for r in two], [list(r.pictures) for r in two]
    *_, last = generator.stream(prompts, 9, greedy, every=9, pictures=shown)
    assert [one.token_ids for one in last] == [given["1"], given["2"]]


def answers_of_plain(model, request):
    """Returns the tokens of the same model without coordinates."""
    *_, (one,) = Generator(*model).stream(
        [list(request.prompt_ids)], 9, SamplingConfig(temperature=0.0), every=9, pictures=[list(request.pictures)]
    )
    return one.token_ids


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gemma3_vision", "qwen3_vl"])
def test_pictures_that_see_themselves_or_have_a_grid(family):
    """Gemma 3's pictures are never cut, and Qwen3-VL's have coordinates and features of several layers."""
    stored = HuggingFaceStore().load(FIXTURES / family)
    config = stored.config.clone()
    if family == "qwen3_vl":
        config.tower.set(picture_size=(24, 32))
    built, params = config.build(), unflatten_paths(stored.params)
    tokens = type(built).picture_tokens(config)
    assert tokens.both_ways == (family == "gemma3_vision")
    rng, vocab = np.random.default_rng(0), config.vocab_size
    special = {tokens.token_id, tokens.mark_id, *tokens.written}
    words = [i for i in range(4, vocab) if i not in special]
    seen = [Picture.of(rng.integers(0, 256, tokens.shape).astype(np.uint8)) for _ in range(4)]

    def asked(name, sizes, *own):
        ids = rng.choice(words, sizes[0]).tolist()
        for size in sizes[1:]:
            ids += [tokens.token_id] * tokens.num_tokens + rng.choice(words, size).tolist()
        return Request(id=name, prompt_ids=tuple(ids), pictures=own, sampling=GREEDY)

    requests = [
        asked("one", (5, 3), seen[0]), asked("another", (5, 3), seen[1]), asked("begins", (0, 2, 4), *seen[:2]),
        asked("text", (17,)), asked("several", (9, 1, 1, 7), *seen[1:]),
    ]  # fmt: skip
    # What a random model would write: the token of a picture, which no picture belongs to.
    known = np.asarray([i != tokens.token_id for i in range(vocab)])
    with LLMEngine(built, params, config=EngineConfig(**{**SIZES, "prefill_rows": (1,)}), known=known) as engine:
        given = answers(engine, requests)
        again = answers(engine, [dataclasses.replace(one, id=f"{one.id} again") for one in requests])
        assert engine.stats()["prefix_cache_hits"] > 0
        engine.check_pages()
    assert list(again.values()) == list(given.values())
    predict = jax.jit(kn.functional(built, "predict"))
    for request in requests:
        ids, images = list(request.prompt_ids), [one.pixels for one in request.pictures]
        for token in given[request.id]:
            padded = np.full((1, 96), words[0], np.int32)
            padded[0, : len(ids)] = ids
            shown = (np.stack(images)[None],) if images else ()
            logits = np.array(predict(params, {}, padded, *shown)[0][0, len(ids) - 1])
            logits[tokens.token_id] = -np.inf
            assert int(np.argmax(logits)) == token, request.id
            ids.append(token)
