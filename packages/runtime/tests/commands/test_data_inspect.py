"""`kanawa data inspect`: what is shown is what rows hold; figures against counts by hand."""

import numpy as np
import pytest
from kanawa.cli.main import main
from kanawa.errors import UsageError
from kanawa_runtime.data.copying import Copying
from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.inspection import figures, histogram, inspected_row
from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.packed import PackedSource
from kanawa_runtime.data.packing import ConcatenatedPacking
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.tokenizers.bytes import ByteTokenizer

TEXTS = (("ask: ", "yes"), ("and: ", "no way"), ("ask: ", "yes"), ("", "é plain"))


class Answers(PackedSource):
    """Prompts that are masked, and answers that are learned; the third equals the first."""

    content_digest = "answers"
    tokenizer = ByteTokenizer.Config().build()

    class Config(PackedSource.Config):
        """No fields."""

    def read_examples(self, split):
        for prompt, answer in TEXTS:
            ids = self.tokenizer.encode(prompt + answer)
            weights = np.repeat([0.0, 1.0, 1.0], [len(prompt), len(ids) - len(prompt), 1]).astype(np.float32)
            yield Example(np.concatenate([[self.tokenizer.bos_id], ids]).astype(np.int32), weights)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KANAWA_CACHE", str(tmp_path / "cache"))


def answers(**fields):
    packing = ConcatenatedPacking.Config()
    return Answers.Config(sequence_length=40, packing=packing, shuffle=False, epochs=1, **fields).build()


def test_a_row_is_shown_by_segments_with_masked_and_learned_parts():
    row = inspected_row(answers(), 0)
    assert [segment.number for segment in row.segments] == [1, 2, 3, 4]
    assert [part.text for part in row.segments[0].parts if part.learned] == [" yes"]
    assert "".join(part.text for part in row.segments[1].parts).endswith("and: no way")
    assert [part.learned for part in row.segments[3].parts] == [False, True]
    assert row.segments[3].parts[1].text == "é plain", "characters of several tokens stay whole"
    assert row.padding == 40 - sum(segment.tokens for segment in row.segments)


def test_figures_are_counts():
    source = answers()
    found = figures(source, 100)
    tokens = [len((prompt + answer).encode()) for prompt, answer in TEXTS]
    assert sorted(found.lengths) == sorted(tokens) and found.rows == 1
    assert found.efficiency == sum(tokens) / 40
    assert found.learned == source.row(0)["loss_weights"].sum() < found.filled == sum(tokens)
    assert (found.examples, found.duplicates) == (4, 1)
    assert found.as_json()["segments_per_row"] == 4


def test_a_mixture_says_where_rows_come_from_and_rows_without_text_are_ids():
    sources = {"a": RandomTokens.Config(vocab_size=7), "b": Copying.Config()}
    mixture = Mixture.Config(sources=sources, weights={"a": 0.75, "b": 0.25}, block_rows=8, sequence_length=16).build()
    found = figures(mixture, 16)
    assert found.rows_by_source == {"a": 12, "b": 4}
    assert found.tokens_by_source == {"a": 12 * 16, "b": 4 * 3}
    assert found.duplicates == found.examples - len({mixture.row(r)["target_ids"][:5].tobytes() for r in range(16)})
    first = next(row for row in range(16) if mixture.order.at(row)[0] == 0)
    row = inspected_row(mixture, first)
    expected = mixture.row(first)["target_ids"].tolist()
    assert row.source == "a" and row.segments[0].parts[-1].text.split() == [str(i) for i in expected]


def test_bars_double_in_width_and_hold_every_length():
    bars = histogram((5, 6, 9, 40, 64))
    assert bars == [(4, 7, 2), (8, 15, 1), (16, 31, 0), (32, 63, 1), (64, 127, 1)]
    assert histogram(()) == []


def test_rows_without_tokens_are_refused():
    class Images(RandomTokens):
        def row(self, index):
            return {"images": np.zeros(3)}

    with pytest.raises(UsageError, match="rows of Images have images: only rows of tokens can be inspected"):
        figures(Images.Config().build(), 2)


def inspected(capsys, *words):
    code = main(["data", "inspect", *words])
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "-1"), "--rows is -1, expected at least 0"),
        (("--sample", "0"), "--sample is 0, expected at least 1"),
    ],
)
def test_what_can_not_be_shown_is_said(capsys, words, message):
    code, shown = inspected(capsys, "tiny-lm", *words)
    assert code == 2 and message in shown.err


def test_an_action_is_needed(capsys):
    assert main(["data"]) == 2
    assert "kanawa data: say what to do: inspect" in capsys.readouterr().err
