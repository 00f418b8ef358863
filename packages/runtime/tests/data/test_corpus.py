"""The corpora: what they read, how they split, and what they say when they can't."""

from pathlib import Path

import pytest
from kanawa_runtime.data.corpus import EXCLUDED_FOLDERS, Document, EmbeddedCorpus, cut_document
from kanawa_runtime.data.errors import CorpusError


def test_embedded_corpus_of_this_python() -> None:
    corpus = EmbeddedCorpus.Config().build()
    train, validation = list(corpus.documents("train")), list(corpus.documents("validation"))
    names = [document.name for document in train + validation]
    assert "json/decoder.py" in names and "argparse.py" in names
    assert not any(EXCLUDED_FOLDERS & set(Path(name).parts[:-1]) for name in names)
    assert names[: len(train)] == sorted(names[: len(train)])
    assert len(set(names)) == len(names)
    num_bytes = sum(len(document.data) for document in train)
    assert 6e6 < num_bytes < 20e6
    assert 0.02 < len(validation) / len(names) < 0.09


def test_split_and_digest_depend_on_content_not_on_place(sources: Path, tmp_path: Path) -> None:
    corpus = EmbeddedCorpus.Config(root=str(sources)).build()
    moved = sources.rename(tmp_path / "elsewhere")
    other = EmbeddedCorpus.Config(root=str(moved)).build()
    assert [d.name for d in other.documents("validation")]
    digest = other.digest
    (moved / "module_1.py").write_text("x = 1\n")
    assert EmbeddedCorpus.Config(root=str(moved)).build().digest != digest
    assert EmbeddedCorpus.Config(root=str(moved), validation_one_in=3).build().digest != digest
    moved.rename(sources)
    assert corpus.digest != digest  # It reads at first use, when the file has changed.


def test_a_files_split_is_its_own(sources: Path) -> None:
    before = {d.name for d in EmbeddedCorpus.Config(root=str(sources)).build().documents("train")}
    (sources / "added.py").write_text("pass\n")
    after = {d.name for d in EmbeddedCorpus.Config(root=str(sources)).build().documents("train")}
    assert before <= after


def test_small_corpora_have_both_splits(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for name in "ab":
        (tmp_path / "code" / f"{name}.py").write_text(f"{name} = 1\n")
    corpus = EmbeddedCorpus.Config(root=str(tmp_path / "code")).build()
    assert len(list(corpus.documents("train"))) == len(list(corpus.documents("validation"))) == 1


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no text: every file is missing or empty"):
        EmbeddedCorpus.Config(root=str(tmp_path)).build().documents("train")
    (tmp_path / "only.py").write_text("pass")
    with pytest.raises(CorpusError, match=r"1 document\(s\) and none in the validation split"):
        EmbeddedCorpus.Config(root=str(tmp_path), validation_one_in=0).build().documents("validation")
    with pytest.raises(CorpusError, match="leaves no training text"):
        EmbeddedCorpus.Config(root=str(tmp_path), validation_one_in=1).build().documents("train")


@pytest.mark.parametrize(
    ("text", "held_out"),
    [
        ("one line\n" * 40, "one line\n" * 2),
        ("word " * 100, "word " * 5),
        ("ü" * 100, "ü" * 5),
        ("ab", "b"),
        ("Hello tiny world.\nBye.\n", "Bye.\n"),
    ],
)
def test_an_only_document_gives_its_end(text: str, held_out: str) -> None:
    train, validation = cut_document(Document("only.txt", text.encode()), 20)
    assert (train.data + validation.data).decode() == text
    assert validation.data.decode() == held_out


def test_an_only_document_may_be_too_short() -> None:
    with pytest.raises(CorpusError, match=r"only\.txt is the only text and too short \(1 bytes\)"):
        cut_document(Document("only.txt", b"a"), 20)


@pytest.mark.parametrize("names", ["ab", "ba", "cd", "xyz"])
def test_what_is_most_of_a_small_corpus_is_trained_on(tmp_path: Path, names: str) -> None:
    for name in names:
        (tmp_path / f"{name}.py").write_text("x = 1\n" * (1000 if name == names[0] else 10))
    corpus = EmbeddedCorpus.Config(root=str(tmp_path)).build()
    assert f"{names[0]}.py" in {document.name for document in corpus.documents("train")}
    assert list(corpus.documents("validation"))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("pass")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"can't read .*gone\.py: No such file"):
        EmbeddedCorpus.Config(root=str(tmp_path)).build().documents("train")
