"""`sft`: an experiment learns the answers of conversations instead of text."""

from pathlib import Path
from typing import Any, Literal

import kanawa as kn
from kanawa.contracts.data import DataSource
from kanawa.errors import ConfigError

from kanawa_runtime.data.chats.answers import Answers
from kanawa_runtime.data.chats.pictures import PictureChats
from kanawa_runtime.data.chats.source import ChatSource
from kanawa_runtime.data.mixture import Mixture
from kanawa_runtime.data.records.of_data import records_of


class SupervisedFineTuning(kn.Modifier):
    """Supervised fine-tuning: `kanawa train FOLDER --modify sft --data chat.jsonl`.

    The records of `--data` have `messages`, or `prompt` and `completion`; the chat template of the folder, or the file
    `template`, writes them, and only what the assistant says is learned. Sizes, packing and learner stay. The other
    fields are those of the source `chats`.
    """

    class Config(kn.Modifier.Config):
        template: str | None = None
        answers: Answers = "all"
        on_long: Literal["cut", "skip", "stop"] = "cut"
        on_bad: Literal["stop", "skip"] = "stop"

    def __call__(self, cfg: kn.Config) -> kn.Config:
        """Returns `cfg` with rows of conversations; raises ConfigError where its data aren't records."""
        if "data" not in cfg.fields():
            message = f"{type(cfg).__qualname__} has no data to learn from: it is no experiment"
            raise ConfigError(message)
        data = cfg.data.clone()
        if isinstance(data, Mixture.Config):
            data.set(sources={name: self._rows(source) for name, source in data.sources.items()})
        else:
            data = self._rows(data)
        changed: kn.Config = cfg.set(data=data)
        return changed

    def _rows(self, data: Any) -> Any:
        own = self.config
        if isinstance(data, PictureChats.Config):
            rows: Any = data.clone().set(answers=own.answers, on_bad=own.on_bad)
        else:
            rows = chat_rows(data).set(answers=own.answers, on_long=own.on_long, on_bad=own.on_bad)
        if own.template is not None:
            rows.set(template_file=str(Path(own.template).resolve()))
        return rows


def chat_rows(data: Any) -> ChatSource.Config:
    """Returns rows of conversations made of the records of `data`, in its sizes; raises ConfigError without records."""
    if isinstance(data, ChatSource.Config):
        return data.clone()
    records = records_of(data)
    if records is None:
        kind = type(data).__qualname__.removesuffix(".Config")
        message = (
            f"conversations are read from records, and the data are {kind}; name a file of records: --data chat.jsonl"
        )
        raise ConfigError(message)
    made = ChatSource.Config(records=records)
    # Every field that both have, such as the tokenizer's file; records bring no shares of a corpus.
    shared = made.fields().keys() & data.fields().keys() & _SIZES
    return made.set(**{name: getattr(data, name) for name in shared})


#: What rows of conversations take over from the rows before.
_SIZES = frozenset(DataSource.Config.fields()) | {"tokenizer_file", "packing", "epochs", "shuffle", "window_documents"}
