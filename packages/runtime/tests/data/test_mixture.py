"""Rows of several sources: whose they are, when weights are wrong, one tokenizer, held-out rows, a restart."""

import numpy as np
import pytest
from kanawa.errors import ConfigError
from kanawa.testing.data_source import DataSourceConformance
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.data.corpus import EmbeddedCorpus
from kanawa_runtime.data.errors import RowError
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.mixture import Mixture, WeightChange
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import TextFiles


def random_rows(**fields):
    sources = {"a": RandomTokens.Config(vocab_size=7), "b": Copying.Config(), "c": Copying.Config(seed=5)}
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    return Mixture.Config(**{"sources": sources, "sequence_length": 16, "weights": weights, **fields})


def text(root, **fields):
    source = TextSource.Config(corpus=EmbeddedCorpus.Config(root=str(root)), window_documents=8, **fields)
    source.tokenizer.set(vocab_size=300)
    return source


@pytest.fixture
def texts(sources, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for number in range(9):
        (other / f"{number}.txt").write_text(f"the {number}th verse of a long song, much the same. " * (3 * number + 2))
    verses = TextSource.Config(corpus=TextFiles.Config(files=("*.txt",), root=str(other)), window_documents=8)
    verses.tokenizer.set(vocab_size=300)
    return {"code": text(sources), "verses": verses}


class TestMixture(DataSourceConformance):
    def source(self):
        return random_rows().build()


class TestMixtureUnderMasks(DataSourceConformance):
    unsupported = {"next token": "hidden tokens are predicted where they stand"}  # noqa: RUF012

    def source(self):
        return MaskedTokens.Config(source=random_rows(), sequence_length=16).build()


def test_a_row_is_its_sources_own_and_says_so():
    mixture = random_rows(block_rows=10).build()
    counts = np.sum([mixture.row(index)["sources"] for index in range(50)], axis=0)
    assert counts.tolist() == [25, 15, 10]
    for index in range(20):
        source, inner = mixture.order.at(index)
        row, own = mixture.row(index), mixture.parts["abc"[source]].row(inner)
        np.testing.assert_array_equal(row["input_ids"], own["input_ids"])
        assert row["sources"].argmax() == source
    assert mixture.fields["sources"].shape == (3,) and mixture.source_names == ("a", "b", "c")
    assert RandomTokens.Config().build().fields["sources"] is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"weights": {"a": 0.5, "b": 0.3, "c": 0.1}},
            r"weights sum to 0.9, expected 1; in these proportions: a=0.5556, b",
        ),
        ({"weights": {"a": 1.2, "b": -0.2, "c": 0}}, r"weights of 'b' is -0.2, expected 0 to 1"),
        ({"weights": {"a": float("nan"), "b": 0.5, "c": 0.5}}, r"weights of 'a' is nan"),
        ({"weights": {"a": 0.5, "b": 0.5}}, r"weights lacks 'c': 0 leaves a source out"),
        ({"weights": {"a": 0.5, "b": 0.3, "c": 0.1, "d": 0.1}}, r"weights has 'd', which is no source"),
        ({"weights": {"a": 0.0, "b": 0.0, "c": 0.0}}, r"weights are all 0"),
        ({"epochs": {"a": 2}}, r"epochs has 'a', but RandomTokens can't count epochs"),
        ({"epochs": {"text": 2}}, r"epochs has 'text', which is no source"),
        ({"sources": {}, "weights": {}}, r"sources is empty"),
        ({"columns": ("a", "b")}, r"columns lacks the source 'c'"),
        (
            {"schedule": (WeightChange(weights={"a": 1.0, "b": 0.0, "c": 0.1}, from_row=5),)},
            r"schedule\[0\].weights sum to 1.1",
        ),
        (
            {"schedule": (WeightChange(weights={"a": 1.0, "b": 0.0, "c": 0.0}),)},
            r"expected either from_row or from_step",
        ),
        (
            {"schedule": tuple(WeightChange(weights={"a": 1.0, "b": 0.0, "c": 0.0}, from_row=r) for r in (9, 5))},
            r"schedule has from_row \[9, 5\], expected each later than the one before",
        ),
    ],
)
def test_what_is_wrong_with_a_mixture_is_said(fields, message):
    with pytest.raises(ConfigError, match=message):
        random_rows(**fields).freeze()


def test_steps_become_rows_and_have_no_meaning_without_batches():
    change = WeightChange(weights={"a": 0.0, "b": 0.0, "c": 1.0}, from_step=3)
    cfg = MaskedTokens.Config(source=random_rows(schedule=(change,)), sequence_length=16)
    assert cfg.in_batches(8).source.schedule[0].from_row == 24
    mixture = random_rows(schedule=(change,)).in_batches(8).build()
    assert [mixture.row(r)["sources"].argmax() for r in range(24, 40)] == [2] * 16
    assert mixture.changes(0, 24) == []
    [told] = mixture.changes(20, 28)
    assert told == {"row": 24, "reason": "schedule", "weights": {"a": 0, "b": 0, "c": 1}, "exhausted": []}
    with pytest.raises(RowError, match="from_step=3 has no meaning without batches"):
        random_rows(schedule=(change,)).build().row(0)


def test_text_of_all_sources_shares_one_tokenizer_and_held_out_rows_come_once_evenly(texts):
    mixture = Mixture.Config(sources=texts, weights={"code": 0.75, "verses": 0.25}, sequence_length=32).build()
    code, verses = mixture.parts.values()
    assert code.tokenizer.digest == verses.tokenizer.digest == mixture.tokenizer.digest
    alone = texts["code"].clone().build().tokenizer.digest
    assert mixture.tokenizer.digest != alone
    assert code.tokenizer.decode(mixture.tokenizer.encode("the 3th verse def")) == "the 3th verse def"
    held_out = mixture.held_out()
    rows = [held_out.row(index)["sources"].argmax() for index in range(held_out.num_rows)]
    parts = [source.held_out().num_rows for source in (code, verses)]
    assert np.bincount(rows).tolist() == parts and held_out.tokenizer.digest == mixture.tokenizer.digest
    assert mixture.target_bytes(np.array([[40, 300 - 1]]), np.ones((1, 2))) == code.target_bytes(
        np.array([[40, 299]]), np.ones((1, 2))
    )
    assert len(list(mixture.documents("train"))) == len(list(code.documents("train"))) + len(
        list(verses.documents("train"))
    )
    assert mixture.once("train").num_rows == sum(source.once("train").num_rows for source in (code, verses))


def test_other_tokenizers_are_an_error_and_a_saved_one_is_for_all(texts, tmp_path):
    texts["verses"].tokenizer.set(vocab_size=280)
    weights = {"code": 0.75, "verses": 0.25}
    with pytest.raises(RowError, match="read by different tokenizers .*set data.tokenizer_file"):
        Mixture.Config(sources=texts, weights=weights).build().tokenizer  # noqa: B018
    texts["code"].clone().build().tokenizer.save(tmp_path / "t.json")
    texts["code"].set_tokenizer_file(str(tmp_path / "t.json"))
    mixture = Mixture.Config(sources=texts, weights=weights).build()
    assert mixture.tokenizer.digest == mixture.parts["verses"].tokenizer.digest


def test_epochs_by_source_end_the_rows_or_leave_the_rest_to_the_others(texts):
    fields = {"sources": texts, "weights": {"code": 0.5, "verses": 0.5}, "sequence_length": 32, "epochs": {"verses": 2}}
    stops = Mixture.Config(**fields).build()
    twice = stops.parts["verses"].num_rows
    verses = stops.parts["verses"]
    learned = sum(verses.row(row)["loss_weights"].sum() for row in range(twice))
    assert learned == 2 * verses.encoded.num_predictions.sum()
    assert stops.order.taken(stops.num_rows)[1] == twice
    drops = Mixture.Config(**fields, when_exhausted="drop").build()
    assert drops.num_rows is None
    [change] = drops.changes(0, 10**6)
    assert change["row"] == stops.num_rows and change["exhausted"] == ["verses"]
    assert change["weights"] == {"code": 1.0, "verses": 0.0}
    with pytest.raises(RowError, match="the source 'code' has no end"):
        Mixture.Config(**{**fields, "weights": None}).build().row(0)


def test_weights_may_change_at_a_restart_and_are_no_part_of_the_digest():
    before = random_rows().build()
    after = random_rows(weights={"a": 0.1, "b": 0.1, "c": 0.8}).build()
    assert before.digest == after.digest != random_rows(block_rows=9).build().digest
    assert random_rows().build().digest != random_rows(seed=3).build().digest
    after.resume(37, before.saved(37))
    for row in range(37):
        np.testing.assert_array_equal(before.row(row)["input_ids"], after.row(row)["input_ids"])
    taken = before.order.taken(37)
    first = [next(after.order.at(r)[1] for r in range(37, 300) if after.order.at(r)[0] == s) for s in range(3)]
    assert first == taken
    [change] = after.changes(0, 1000)
    assert (change["row"], change["reason"], change["weights"]["c"]) == (37, "restart", 0.8)
    third = random_rows().build()
    third.resume(90, after.saved(90))
    assert [c["row"] for c in third.changes(0, 1000)] == [37, 90]
    assert [third.order.at(r) for r in range(90)] == [after.order.at(r) for r in range(90)]
    broken = before.saved(37)
    broken["taken"]["a"] += 1
    with pytest.raises(RowError, match="by row 37 the sources had given"):
        random_rows().build().resume(37, broken)
