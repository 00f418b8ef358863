"""The baseline is a distribution, is honest, and beats weaker tables."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from kanawa_runtime.data.corpus import EmbeddedCorpus
from kanawa_runtime.data.trigram import ByteTrigram


def test_every_context_sums_to_one() -> None:
    model = ByteTrigram([b"the cat sat on the mat", b"", b"\xff\x00\xff"])
    totals = model._probabilities.sum(-1, dtype=np.float64)
    np.testing.assert_allclose(totals, 1, atol=1e-5)
    assert model._probabilities.min() > 0


def test_scores_from_an_independent_count() -> None:
    text = random.Random(0).choices(b"abc", k=30_000)
    # Each context occurs thousands of times: plain counts decide, smoothing hardly matters.
    symbols = [256, 256, *text, 256]
    triples = list(zip(symbols, symbols[1:], symbols[2:], strict=False))
    counts, contexts = Counter(triples), Counter(triple[:2] for triple in triples)
    expected = -sum(math.log(counts[triple] / contexts[triple[:2]]) for triple in triples)
    assert ByteTrigram([bytes(text)]).nats([bytes(text)]) == pytest.approx(expected, rel=2e-3)


def test_on_the_embedded_corpus() -> None:
    corpus = EmbeddedCorpus.Config().build()
    train, validation = ([d.data for d in corpus.documents(s)] for s in ("train", "validation"))
    nats = ByteTrigram(train).nats_per_byte(validation)
    counts = np.bincount(np.frombuffer(b"".join(validation), np.uint8), minlength=256)
    shares = counts[counts > 0] / counts.sum()
    order_zero_entropy = -(shares * np.log(shares)).sum()
    assert 1.5 < nats < 2.3 < order_zero_entropy


def test_no_text_has_no_score() -> None:
    with pytest.raises(ValueError, match="nats per byte of no text is undefined"):
        ByteTrigram([b"a"]).nats_per_byte([b""])
