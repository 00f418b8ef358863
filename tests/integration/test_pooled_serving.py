"""`kanawa serve` of models that write nothing: vectors, reranking and labels, by clients as they are."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import jax
import kanawa as kn
import numpy as np
import openai
import pytest
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import StoredModel
from kanawa.errors import UsageError
from kanawa_layers.convert.huggingface import HuggingFaceStore
from kanawa_layers.models.labels import as_classifier
from kanawa_layers.recipes.bert import bert
from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.http.from_run import pooled_model, pools
from served_in_thread import serving
from words_of_bert import WORDS, tokenizer

TEXTS = [" ".join(WORDS[5 : 6 + count % 9]) for count in range(12)] + ["good " * 40]


def saved(folder, name, labels=None):
    cfg = bert(num_layers=1, input_dim=16, num_heads=2, vocab_size=32, max_length=64, pooler=labels is None, head=False)
    cfg = cfg if labels is None else as_classifier(cfg, labels)
    params = flatten_paths(kn.initialize(cfg.build(), jax.random.key(1)))
    # Larger than they begin: all texts' vectors would be alike.
    chance = np.random.default_rng(0)
    arrays = {path: chance.normal(0, 0.5, leaf.shape).astype(np.float32) for path, leaf in params.items()}
    HuggingFaceStore().save(folder / name, StoredModel(cfg, arrays))
    (folder / name / "tokenizer.json").write_text(tokenizer())
    (folder / name / "tokenizer_config.json").write_text(json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]"}))
    return folder / name


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooled")
    return {
        "plain": saved(folder, "plain"),
        "three": saved(folder, "three", ("bad", "fair", "good")),
        "ranker": saved(folder, "ranker", ("relevant",)),
    }


@contextlib.contextmanager
def served(folder, pooling=None, keys=(), max_queued=32, **limits):
    assert pools(folder, pooling)
    model = pooled_model(folder, EngineConfig(max_queued=max_queued), pooling)
    with serving(model, keys, **limits) as url, httpx2.Client(base_url=url, timeout=60) as http:
        http.model = model
        yield http


def posted(http, path, status=200, **body):
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def states(folder, text):
    """Returns the stream of one text, computed without the engine, and its ids."""
    from tokenizers import Tokenizer

    stored = HuggingFaceStore().load(folder)
    encoded = Tokenizer.from_str(tokenizer()).encode(*text) if isinstance(text, tuple) else None
    encoded = encoded or Tokenizer.from_str(tokenizer()).encode(text)
    ids, types = (np.array([each], np.int32) for each in (encoded.ids, encoded.type_ids))
    model, params = stored.config.build(), unflatten_paths(stored.params)
    found = kn.functional(model, "states")(params, {}, ids, None, types)[0]
    return model, params, found


def test_embeddings_by_the_official_client(folders):
    with served(folders["plain"], "mean") as http:
        with openai.OpenAI(base_url=f"{http.base_url}/v1".replace("//v1", "/v1"), api_key="x", max_retries=0) as client:
            answer = client.embeddings.create(model="plain", input=TEXTS)
            vectors = np.array([one.embedding for one in answer.data])
            floats = client.embeddings.create(model="plain", input=TEXTS[0], encoding_format="float")
            short = client.embeddings.create(model="plain", input=TEXTS[1], dimensions=4).data[0].embedding
            with pytest.raises(openai.BadRequestError, match="dimensions: 99 is more than the model's 16"):
                client.embeddings.create(model="plain", input="a", dimensions=99)
            with pytest.raises(openai.BadRequestError, match=r"input\[1\]: it has 82 tokens, expected at most 64"):
                client.embeddings.create(model="plain", input=["a", "good " * 80])
            with pytest.raises(openai.NotFoundError, match="there is no '/v1/completions' here"):
                client.completions.create(model="plain", prompt="a")
        # Each text alone, and many clients at once, get what a batch gets.
        with ThreadPoolExecutor(8) as pool:
            alone = list(pool.map(lambda text: posted(http, "/v1/embeddings", input=text), TEXTS))
    np.testing.assert_allclose([one["data"][0]["embedding"] for one in alone], vectors, atol=1e-6)
    np.testing.assert_allclose(floats.data[0].embedding, vectors[0], atol=1e-6)
    np.testing.assert_allclose(short, vectors[1, :4] / np.linalg.norm(vectors[1, :4]), atol=1e-6)
    for text, vector in zip(TEXTS[:3], vectors, strict=False):
        mean = np.asarray(states(folders["plain"], text)[2])[0].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(text.split()) + 2 for text in TEXTS)


def test_labels_and_reranking(folders):
    with served(folders["three"]) as http:
        answer = posted(http, "/classify", input=TEXTS)
        for text, one in zip(TEXTS[:3], answer["data"], strict=False):
            model, params, stream = states(folders["three"], text)
            logits = np.asarray(kn.functional(model, "label_logits")(params, {}, stream)[0])[0, 0]
            shares = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(one["probs"], shares, atol=1e-5)
            assert (one["label"], one["num_classes"]) == (("bad", "fair", "good")[shares.argmax()], 3)
        assert "several labels" in posted(http, "/v1/rerank", 422, query="a", documents=["b"])["error"]["message"]
        assert "labels texts" in posted(http, "/v1/embeddings", 422, input="a")["error"]["message"]
    with served(folders["ranker"]) as http:
        found = posted(http, "/v1/rerank", query="good film", documents=TEXTS, top_n=4)["results"]
        every = posted(http, "/v1/rerank", query="good film", documents=TEXTS, return_documents=False)["results"]
    scores = [one["relevance_score"] for one in every]
    assert scores == sorted(scores, reverse=True) and len(every) == len(TEXTS)
    assert [one["index"] for one in found] == [one["index"] for one in every[:4]]
    assert found[0]["document"]["text"] == TEXTS[found[0]["index"]]
    model, params, stream = states(folders["ranker"], ("good film", TEXTS[found[0]["index"]]))
    logit = float(np.asarray(kn.functional(model, "label_logits")(params, {}, stream)[0])[0, 0, 0])
    assert found[0]["relevance_score"] == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-5)


def test_what_is_refused(folders):
    with pytest.raises(UsageError, match="has no labels: pool its vectors with first, last or mean"):
        pooled_model(folders["plain"], EngineConfig(), "labels")
    with served(folders["plain"]) as http:
        for body, param in [({"input": []}, "input"), ({"inptu": "a"}, "inptu"), ({"input": 1}, "input")]:
            assert posted(http, "/v1/embeddings", 400, **body)["error"]["param"] == param
        # More than a client's share of the places is never read at once; a full queue is for later.
        assert "a client may have" in posted(http, "/v1/embeddings", 400, input=["a"] * 60)["error"]["message"]
        cosine = posted(http, "/v1/rerank", query=TEXTS[3], documents=TEXTS[2:5])["results"]
        assert (cosine[0]["index"], round(cosine[0]["relevance_score"], 5)) == (1, 1.0)


def test_keys_and_a_full_queue(folders):
    with served(folders["plain"], "first", keys=("one", "two"), max_queued=2) as http:
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})):
            assert posted(http, path, 401, **body)["error"]["type"] == "authentication_error"
        http.headers["Authorization"] = "Bearer one"
        posted(http, "/v1/embeddings", input="a")
        # While the engine is at work its queue fills, and what has no room in it is refused before it is read.
        engine, go = http.model.engine, threading.Event()
        program = engine._program
        engine._program = lambda *arrays: program(*arrays) if go.wait(60) else None

        def reaches(name, count):
            end = time.monotonic() + 60
            while engine.stats()[name] != count:
                assert time.monotonic() < end, "it never happened"
                time.sleep(0.01)

        with ThreadPoolExecutor(3) as pool:
            try:
                first = pool.submit(posted, http, "/v1/embeddings", input="a")
                reaches("num_requests_running", 1)
                later = [pool.submit(posted, http, "/v1/embeddings", input=text) for text in "ab"]
                reaches("num_requests_waiting", 2)
                assert posted(http, "/v1/embeddings", 429, input="a")["error"]["code"] == "queue_full"
                assert posted(http, "/v1/rerank", 429, query="a", documents=["b"])["error"]["code"] == "queue_full"
            finally:
                go.set()
            assert all(len(one.result()["data"]) == 1 for one in (first, *later))
