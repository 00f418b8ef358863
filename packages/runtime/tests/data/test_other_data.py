"""`--data` in all its forms, and the tokenizer that the data is read by."""

import json

import kanawa as kn
import pytest
from kanawa.contracts import MaskedLM
from kanawa.errors import UsageError
from kanawa_runtime.data.corpus import EmbeddedCorpus
from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.other_data import on_other_data, reads_files
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.text_files import JsonLines, TextFiles
from kanawa_runtime.experiments.template import LanguageModelTemplate
from tiny_lm import CountingTokens, TinyLM


class Both(MaskedLM):
    def forward(self, batch):
        del batch


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytext" / "deep").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt"):
        (tmp_path / "mytext" / name).write_text(f"What {name} says.\n" * 40)
    (tmp_path / "records.jsonl").write_text(json.dumps({"text": "one"}) + "\n")
    return tmp_path


def experiment(vocab_size=300):
    return LanguageModelTemplate().experiment(TinyLM.Config(vocab_size=vocab_size))


@pytest.mark.parametrize(
    ("text", "corpus", "files"),
    [
        ("mytext/**/*.txt", TextFiles, ("**/*.txt",)),
        ("mytext", TextFiles, ("**/*",)),
        ("mytext/a.txt", TextFiles, ("a.txt",)),
        ("records.jsonl", JsonLines, ("records.jsonl",)),
    ],
)
def test_files(texts, text, corpus, files):
    before = experiment()
    data = on_other_data(before, text).data
    assert isinstance(data.corpus, corpus.Config)
    assert data.corpus.files == files
    assert data.clone().set(corpus=before.data.corpus) == before.data, "everything else stays"
    assert isinstance(before.data.corpus, EmbeddedCorpus.Config)


def test_a_name_means_that_experiments_data_at_our_length():
    data = on_other_data(experiment(5000), "tiny-lm").data
    assert isinstance(data, CountingTokens.Config)
    assert data.sequence_length == 256
    assert isinstance(on_other_data(experiment(), "random-tokens").data, RandomTokens.Config)


def test_files_take_the_place_of_tokens_that_were_no_text(texts):
    cfg = experiment().set(data=RandomTokens.Config(sequence_length=32, vocab_size=300))
    data = on_other_data(cfg, "mytext").data
    assert (type(data), data.sequence_length, data.build().vocab_size) == (TextSource.Config, 32, 300)


def test_masked_models_keep_hidden_tokens(texts):
    cfg = LanguageModelTemplate().experiment(Both.Config(vocab_size=300, input_dim=8))
    data = on_other_data(cfg, "mytext").data
    assert isinstance(data, MaskedTokens.Config)
    assert isinstance(data.source.corpus, TextFiles.Config)


def test_the_folders_tokenizer_reads_the_new_text(texts):
    source = TextSource.Config(tokenizer=experiment().data.tokenizer).build()
    cfg = experiment()
    cfg.data.set(corpus=on_other_data(cfg, "mytext").data.corpus)
    source = cfg.data.build()
    source.tokenizer.save(texts / "tokenizer.json")
    data = on_other_data(experiment(), "records.jsonl", texts / "tokenizer.json").data
    assert data.build().tokenizer.digest == source.tokenizer.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quickstrat", "did you mean 'quickstart'?"),
        ("nowhere/*.txt", "no file matches"),
        ("masked:shape=2", "shape"),
        ("maskd:share=0.5,seed=2", "did you mean 'masked'"),
        ("masked:share=0.5,2", "expected NAME or NAME:key=value,key=value; found '2'"),
    ],
)
def test_what_is_no_data(texts, text, said):
    with pytest.raises(kn.KanawaError, match="nowhere|data") as error:
        on_other_data(experiment(), text)
    assert said in str(error.value)


def test_fields_of_a_source_are_given_in_one_go(texts):
    masked = LanguageModelTemplate().experiment(Both.Config(vocab_size=300, input_dim=8))
    small = ["data.source.vocab_size=100"]
    data = kn.compose(masked, data="masked:source=random-tokens,share=0.5", overrides=small).config.data
    assert isinstance(data.source, RandomTokens.Config) and data.share == 0.5
    assert on_other_data(experiment(), "kanawa-runtime:random-tokens:num_rows=3").data.num_rows == 3
    assert on_other_data(experiment(), "random-tokens:sequence_length=16").data.sequence_length == 16
    # What is missing may still come by --set, and is an error of the whole config else.
    with pytest.raises(kn.KanawaError, match=r"data\.source"):
        kn.compose(experiment(), data="masked")


def test_corpora_go_by_their_names(texts):
    data = on_other_data(experiment(), 'text-files:files=["mytext/*.txt"],split_lines=true').data
    assert isinstance(data, TextSource.Config)
    assert (data.corpus.files, data.corpus.split_lines) == (("mytext/*.txt",), True)
    assert isinstance(on_other_data(experiment(), "embedded").data.corpus, EmbeddedCorpus.Config)
    assert reads_files("embedded") and reads_files("mytext") and not reads_files("random-tokens")


def test_a_vocabulary_too_small_for_text(texts):
    with pytest.raises(UsageError, match="more than 259 token ids, but this model has 64"):
        on_other_data(experiment(64), "mytext")
