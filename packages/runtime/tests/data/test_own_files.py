"""The grammar of `--data`: files here and at addresses, options, several with and without weights."""

import json
import re
from pathlib import Path

import pytest
from kanawa.errors import UsageError
from kanawa_runtime.data.errors import CorpusError
from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.other_data import on_other_data, reads_files
from kanawa_runtime.data.own_files import Part, names_files, own_corpus, parts_of
from kanawa_runtime.data.text_files import JsonLines, RecordTexts, TextFiles
from kanawa_runtime.experiments.template import LanguageModelTemplate
from tiny_lm import TinyLM


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code" / "deep").mkdir(parents=True)
    for name in ("code/a.jsonl", "code/deep/b.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": f"{name} {i} " * 20}) + "\n" for i in range(30)))
    (tmp_path / "web.csv").write_text("body,n\n" + "".join(f"the web says {i} {i} {i},{i}\n" for i in range(40)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("note\n" * 50)
    (tmp_path / "part-07").write_text("numbered\n" * 50)
    return tmp_path


def experiment():
    return LanguageModelTemplate().experiment(TinyLM.Config(vocab_size=300))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("web.csv", [("web.csv", None)]),
        ("web.csv*0.7,code/**/*.jsonl*0.3", [("web.csv", 0.7), ("code/**/*.jsonl", 0.3)]),
        ("a.csv:field=body,on_bad=skip*.7,b*1", [("a.csv:field=body,on_bad=skip", 0.7), ("b", 1.0)]),
        (
            "random-tokens:vocab_size=9,num_rows=3*0.5,x*0.5",
            [("random-tokens:vocab_size=9,num_rows=3", 0.5), ("x", 0.5)],
        ),
        ("s3://b/a/*.parquet*2,quickstart*1", [("s3://b/a/*.parquet", 2.0), ("quickstart", 1.0)]),
        ("part*07", [("part*07", None)]),
        ("other*07", [("other", 7.0)]),
        ("a.txt,b.txt", [("a.txt", None), ("b.txt", None)]),
        ('text-files:files=["a","b"],split_lines=true', [('text-files:files=["a","b"],split_lines=true', None)]),
    ],
)
def test_parts(text, parts):
    assert parts_of(text) == [Part(*part) for part in parts]


def test_a_path_with_a_comma_is_one_path(folder):
    (folder / "a,b.txt").write_text("x")
    assert parts_of("a,b.txt") == [Part("a,b.txt")]


def test_weights_for_all_or_none():
    with pytest.raises(UsageError, match=r"web\.csv has no weight; give each part a weight, as in web\.csv\*0\.5"):
        parts_of("web.csv,notes/*.txt*0.5")


def test_kinds_and_options(folder):
    assert isinstance(own_corpus("code"), JsonLines.Config)
    assert isinstance(own_corpus("notes"), TextFiles.Config)
    corpus = own_corpus("web.csv:field=body,on_bad=skip")
    assert (type(corpus), corpus.field, corpus.on_bad) == (RecordTexts.Config, "body", "skip")
    assert (corpus.root, corpus.files) == (str(folder), ("web.csv",))
    assert own_corpus("notes:lines=true").split_lines
    with pytest.raises(UsageError, match="feild.*did you mean 'field'") as error:
        own_corpus("web.csv:feild=body")
    assert "in --data web.csv:feild=body" in error.value.__notes__
    with pytest.raises(CorpusError, match=r"both records \(\./.*|both records"):
        own_corpus(".")
    assert names_files("web.csv:field=body") and names_files("x.parquet") and names_files("s3://bucket/folder")
    assert not names_files("qwen3-0.6b")


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "-0.5"])
def test_a_weight_below_zero_or_no_number_is_refused(weight):
    with pytest.raises(UsageError, match=rf"the weight of a\.csv is {weight}, expected 0 or more"):
        parts_of(f"a.csv*{weight},b.csv*1")


def test_a_weight_may_have_an_exponent():
    assert [part.weight for part in parts_of("a.csv*1e-3,b.csv*2.5E2")] == [0.001, 250.0]


def test_several_without_weights_are_one_text(folder):
    corpus = own_corpus("code/a.jsonl", "code/deep")
    assert corpus.root == str(folder / "code")
    assert [found.name for found in corpus.build().found()] == ["a.jsonl", "deep/b.jsonl"]
    with pytest.raises(CorpusError, match=r"web\.csv and notes are read differently.*web\.csv\*0\.5,notes\*0\.5"):
        own_corpus("web.csv", "notes")
    for text, other in (("code/a.jsonl", "code/a.jsonl"), ("code/a.jsonl", "./code/*.jsonl"), ("code", "code/deep")):
        with pytest.raises(UsageError, match=rf"twice, by {re.escape(text)} and by {re.escape(other)}: name it once"):
            own_corpus(text, other)
    assert reads_files("code/a.jsonl,code/deep") and not reads_files("notes,random-tokens")


def test_addresses(folder):
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("a.jsonl", "deep/b.jsonl"):
        memory.pipe(f"/{folder.name}/code/{name}", (folder / "code" / name).read_bytes())
    root = f"memory://{folder.name}/code"
    for text, (at, files) in {
        f"{root}/**/*.jsonl": (root, ("**/*.jsonl",)),
        root: (root, ("**/*",)),
        f"{root}/a.jsonl": (root, ("a.jsonl",)),
    }.items():
        corpus = own_corpus(text)
        assert (type(corpus), corpus.root, corpus.files) == (JsonLines.Config, at, files), text
    here, there = own_corpus("code").set(validation_one_in=0), own_corpus(root).set(validation_one_in=0)
    assert here.build().digest == there.build().digest, "where the text lies doesn't matter"


def test_weights_make_a_mixture():
    data = on_other_data(experiment(), "web.csv:field=body*0.7,code/**/*.jsonl*0.3").data
    assert isinstance(data, Mixture.Config)
    assert data.weights == {"web": 0.7, "code": 0.3}
    assert [type(source.corpus) for source in data.sources.values()] == [RecordTexts.Config, JsonLines.Config]
    assert data.sequence_length == 256
    source = data.seeded(0).build()
    rows = [source.row(i) for i in range(10)]
    texts = [source.tokenizer.decode(row["input_ids"][row["segment_ids"] > 0]) for row in rows]
    assert sum("the web says" in text for text in texts) == 7 and sum("code/" in text for text in texts) == 3
    twice = on_other_data(experiment(), "code/a.jsonl*0.5,notes/a.txt*0.5").data
    assert list(twice.sources) == ["a", "a_2"]
    with pytest.raises(UsageError, match=r"names \./notes twice: name it once, with the sum of its weights"):
        on_other_data(experiment(), "notes*0.5,./notes*0.5")


def test_what_is_unknown_is_named():
    with pytest.raises(UsageError, match="no experiment, data source or corpus is called so"):
        on_other_data(experiment(), "quickstrat*0.5,notes*0.5")
    with pytest.raises(CorpusError, match=r"no file matches './nots'"):
        on_other_data(experiment(), f"./nots*0.5,{Path('notes')}*0.5")
