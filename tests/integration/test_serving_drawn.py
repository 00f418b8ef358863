"""`kanawa serve` of models that make pictures: OpenAI's client asks for some by a text or a label."""

import base64
import contextlib
from concurrent.futures import ThreadPoolExecutor

import jax
import kanawa as kn
import numpy as np
import openai
import pytest
from kanawa.arrays.tree import flatten_paths
from kanawa.contracts import StoredModel
from kanawa_layers.diffusion.flow_matching import FlowMatching
from kanawa_layers.recipes.dit import dit
from kanawa_layers.recipes.sd3 import sd3
from kanawa_layers.recipes.text_encoders import text_reader
from kanawa_runtime.data.images.decode import decoded
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer
from kanawa_runtime.runs.model_store import RunStore
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.http.from_run import drawing_model, draws
from served_in_thread import serving

LENGTH, VOCAB = 16, 259


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs of a model of texts and of one of labels; what begins as zeros is drawn, so that wishes matter."""
    root = tmp_path_factory.mktemp("drawn")
    reader = text_reader(input_dim=16, vocab_size=VOCAB, length=LENGTH)
    texts = sd3(
        num_layers=2, num_heads=2, head_dim=8, num_channels=3, image_size=8, text_dim=16, pooled_dim=16,
        text_length=LENGTH, max_size=4, encoder=reader, shift=1.0,
    )  # fmt: skip
    sizes = {"num_layers": 1, "input_dim": 16, "num_heads": 2, "image_size": 8, "num_channels": 1, "num_classes": 2}
    labels = dit(**sizes, objective=FlowMatching.Config()).set(class_names=("ring", "star"))
    generator = np.random.default_rng(0)
    for name, cfg, files in (("texts", texts, True), ("labels", labels, False)):
        cfg.sampler.set(num_steps=2)
        built = cfg.clone().build()
        params = {
            path: np.asarray(leaf) for path, leaf in flatten_paths(kn.initialize(built, jax.random.key(1))).items()
        }
        params = {
            path: leaf if leaf.any() else 0.3 * generator.standard_normal(leaf.shape, np.float32)
            for path, leaf in params.items()
        }
        state = {
            path: np.asarray(leaf) for path, leaf in flatten_paths(kn.initial_state(built, jax.random.key(0))).items()
        }
        tokenizer = ByteTokenizer.Config().build()
        carried = tokenizer.folder_files() if files else {}
        RunStore().save(root / name, StoredModel(cfg, params, state, files=carried))
    return root


@contextlib.contextmanager
def served(folder, **limits):
    assert draws(folder)
    model = drawing_model(folder, EngineConfig(max_queued=32, max_sequences=4), name="it")
    with (
        serving(model, ("secret",), **limits) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
    ):
        yield client


def pixels(image):
    return np.array(decoded(base64.b64decode(image.b64_json), 3, 10_000))


def test_pictures_of_texts_by_the_official_client(folders):
    with served(folders / "texts", max_n=3) as client:

        def asked(prompt="a star", seed=7, **options):
            guidance = {} if (value := options.pop("guidance", None)) is None else {"guidance": value}
            return client.images.generate(
                model="it", prompt=prompt, extra_body={"seed": seed, **guidance}, response_format="b64_json", **options
            )

        three = asked(n=3, size="8x8")
        assert len(three.data) == 3 and three.size == "8x8" and three.output_format == "png"
        alone = [pixels(asked(seed=seed).data[0]) for seed in (7, 8, 9)]
        for one, other in zip(three.data, alone, strict=True):
            np.testing.assert_array_equal(pixels(one), other)
        assert alone[0].shape == (8, 8, 3) and np.abs(alone[0].astype(int) - alone[1]).max() > 0
        # Beside others that ask for other things, each gets what it gets alone.
        wishes = [("a star", 7, 2.0), ("a ring", 7, 2.0), ("a star", 8, 1.0), ("a star", 7, 5.0)] * 2
        single = [pixels(asked(text, seed, guidance=far).data[0]) for text, seed, far in wishes[:4]]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda wish: pixels(asked(*wish[:2], guidance=wish[2]).data[0]), wishes))
        for one, other in zip(together, single * 2, strict=True):
            np.testing.assert_array_equal(one, other)
        assert np.abs(single[0].astype(int) - single[1]).max() > 0, "another text"
        np.testing.assert_array_equal(single[0], kn.open(folders / "texts").pictures("a star", seed=7)[0].pixels)
        drawn = client.images.generate(model="it", prompt="a star").data[0]
        np.testing.assert_array_equal(pixels(drawn), pixels(asked(seed=drawn.seed).data[0]))
        for options, said in (
            ({"size": "1024x1024"}, "size: it is '1024x1024', expected auto or 8x8"),
            ({"n": 4}, "n: Input should be less than or equal to 3, got 4"),
            ({"prompt": "a large star at the left"}, f"prompt: the text has 26 tokens, and the model reads {LENGTH}"),
            ({"output_format": "webp"}, "output_format: Input should be 'png'"),
            ({"guidance": -1}, "guidance: Input should be greater than or equal to 0"),
            ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                asked(**options)
        with pytest.raises(openai.BadRequestError, match="response_format: Input should be 'b64_json'"):
            client.images.generate(model="it", prompt="a", response_format="url")
        with pytest.raises(openai.NotFoundError, match="other"):
            client.images.generate(model="other", prompt="a")


def test_a_label_is_asked_for_by_its_name(folders):
    with served(folders / "labels") as client:
        ring, star, first = (
            client.images.generate(model="it", prompt=name, extra_body={"seed": 3}).data[0]
            for name in ("ring", "star", "0")
        )
        np.testing.assert_array_equal(pixels(ring), pixels(first))
        assert np.abs(pixels(ring).astype(int) - pixels(star)).max() > 0
        with pytest.raises(openai.BadRequestError, match="prompt: label 'rong' is none of the model's 2: ring, star"):
            client.images.generate(model="it", prompt="rong")
        with pytest.raises(openai.NotFoundError, match="there is no '/v1/chat/completions' here"):
            client.chat.completions.create(model="it", messages=[])
