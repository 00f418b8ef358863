"""The corpora: what they read, how they split, and what they say when they can't."""

from pathlib import Path

import pytest
from kanawa_runtime.data.corpus import EXCLUDED_FOLDERS, EmbeddedCorpus
from kanawa_runtime.data.errors import CorpusError


def test_embedded_corpus_of_this_python() -> None:
    corpus = EmbeddedCorpus.Config().build()
    train, validation = corpus.documents("train"), corpus.documents("validation")
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
    assert len(corpus.documents("train")) == len(corpus.documents("validation")) == 1


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no documents: check the path"):
        EmbeddedCorpus.Config(root=str(tmp_path)).build().documents("train")
    (tmp_path / "only.py").write_text("pass")
    with pytest.raises(CorpusError, match=r"1 document\(s\) and none in the validation split"):
        EmbeddedCorpus.Config(root=str(tmp_path)).build().documents("validation")
    with pytest.raises(CorpusError, match="leaves no training text"):
        EmbeddedCorpus.Config(root=str(tmp_path), validation_one_in=1).build().documents("train")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("pass")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"can't read .*gone\.py: No such file"):
        EmbeddedCorpus.Config(root=str(tmp_path)).build().documents("train")
