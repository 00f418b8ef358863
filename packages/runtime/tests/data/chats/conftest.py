"""Folders of tokenizers with chat templates, and files of conversations."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.records.files import RecordFiles

HERE = Path(__file__).parent
#: What `transformers` made of conversations; see fixtures/make_masks.py.
MADE: dict[str, Any] = json.loads((HERE / "fixtures" / "masks.json").read_text())


def template_source(name: str, *, marks: bool = True) -> str:
    """Returns a template's text; without marks the same text, as most published templates are."""
    source = (HERE / "templates" / f"{name}.jinja").read_text()
    if marks:
        return source
    return (
        source.replace("{%- generation %}", "{#- -#}")
        .replace("{%- endgeneration %}", "{#- #}")
        .replace("{% endgeneration %}", "{# #}")
    )


def made_in(tmp_path: Path) -> Callable[..., ChatSource]:
    """Returns what makes sources whose files are in a folder."""

    def make(
        records: Sequence[Any] = (), template: str | None = "chatml", kind: str = "byte_level", *,
        marks: bool = True, **fields: Any,
    ) -> ChatSource:  # fmt: skip
        folder = tmp_path / f"{kind}-{template}-{marks}"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(MADE["tokenizers"][kind])
        settings = {"bos_token": "<s>", "eos_token": MADE["ends"].get(template, "</s>")}
        if template is not None:
            settings["chat_template"] = template_source(template, marks=marks)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        file = tmp_path / "chat.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        sizes = {"sequence_length": 256, "validation_one_in": 0, "epochs": 1, "shuffle": False, **fields}
        data = RecordFiles.Config(files=(file.name,), root=str(tmp_path))
        made: ChatSource = ChatSource.Config(records=data, tokenizer_file=str(folder), **sizes).build()
        return made

    return make


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., ChatSource]:
    """Returns what makes a source of records, read by one of the tokenizers with one of the templates."""
    return made_in(tmp_path)


@pytest.fixture(scope="module")
def kept_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ChatSource]:
    """The same without records, each kind made once a file: every source starts a process for its template."""
    return functools.cache(made_in(tmp_path_factory.mktemp("kept")))


def conversation(*contents: str, **fields: Any) -> dict[str, Any]:
    """Returns a record of turns of user and assistant."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)], **fields}
