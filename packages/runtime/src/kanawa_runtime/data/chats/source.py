"""Rows of conversations: the model's own template writes them, and only what the assistant says is learned."""

import datetime
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from kanawa.errors import UsageError

from kanawa_runtime.data.chats.answers import Answers, learned_text
from kanawa_runtime.data.chats.messages import TextPair, conversation_of
from kanawa_runtime.data.chats.picture_text import PictureText
from kanawa_runtime.data.chats.template import ChatTemplate, template_of, turns
from kanawa_runtime.data.chats.template_process import MarkedText, TemplateError
from kanawa_runtime.data.encoded import Example
from kanawa_runtime.data.packing import OnePerRow
from kanawa_runtime.data.records.source import RecordError, RecordSource
from kanawa_runtime.data.tokenizers.huggingface import HuggingFaceTokenizer
from kanawa_runtime.data.tokenizers.load import load_tokenizer
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

#: What the assistant says in the conversation that shows how a template ends an answer.
_PROBE = "kanawaprobe"


class ChatSource(RecordSource):
    """Packed rows of conversations, each a segment of its own; targets that the assistant doesn't say weigh 0.

    A record has `messages`, or `prompt` and `completion` (both texts, or both messages), and may have `tools` and
    `chat_template_kwargs`. Messages are written by the chat template of the tokenizer's folder, or of `template_file`;
    it is saved with the run's tokenizer. Two texts are joined, between what a text begins with and the end token.
    """

    class Config(RecordSource.Config):
        CONTENT: ClassVar[tuple[str, ...]] = ("records", "template_file")
        PLACEMENT: ClassVar[tuple[str, ...]] = ("template_file",)

        #: A Jinja file instead of the template in the tokenizer's folder.
        template_file: str | None = None
        #: Which answers of a conversation are learned; "last" drops what follows the last one.
        answers: Answers = "all"
        #: Whether a record may have no answer: its row then is the prompt, and nothing of it is learned.
        may_lack_answer: bool = False
        #: What templates that write a date take for today, YYYY-MM-DD: rows must not depend on when they are made.
        day: str = "2026-01-01"

        def check(self) -> list[str]:
            """Returns what is wrong with the day."""
            try:
                datetime.date.fromisoformat(self.day)
            except ValueError:
                return [f"day is {self.day!r}, expected a date, YYYY-MM-DD"]
            return []

        def set_prompts(self) -> None:
            """Sets rows to questions: one conversation a row, whose last answer, if it has one, is the answer."""
            self.set(answers="last", may_lack_answer=True, packing=OnePerRow.Config())

    @functools.cached_property
    def _plain_tokenizer(self) -> Tokenizer:
        file = self.config.tokenizer_file
        if file is None:
            message = (
                "conversations are read by the tokenizer of the model that learns them, and data.tokenizer_file names "
                "none: train a folder that has a tokenizer.json, kanawa train FOLDER --modify sft --data chat.jsonl"
            )
            raise UsageError(message)
        return load_tokenizer(file)

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """The template of `template_file`, else of the tokenizer's folder."""
        file = self.config.template_file
        files = self._plain_tokenizer.folder_files()
        return template_of(files, None if file is None else Path(file))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer with the template, and with the token that ends the template's answers among its stops."""
        plain = self._plain_tokenizer
        if not isinstance(plain, HuggingFaceTokenizer) or not self.template.own:
            return plain
        return plain.for_chats(self.template.source, self._stop_id)

    @functools.cached_property
    def _after_answer(self) -> tuple[int, ...]:
        """Ids that the template writes after an answer; none where it refuses two turns."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.template.render_marked([turns(messages)], self.config.day)[0].text
        except TemplateError:
            return ()
        end = text.rfind(_PROBE) + len(_PROBE)
        ids, ranges = self._plain_tokenizer.encode_ranges(text)
        return tuple(ids[ranges[:, 0] >= end].tolist())

    @property
    def _stop_id(self) -> int | None:
        """The special token that the template writes after an answer; None where it writes none, or refuses."""
        special = self._plain_tokenizer.special_names
        return next((token for token in self._after_answer[:1] if token in special), None)

    @property
    def answer_tail(self) -> tuple[int, ...]:
        """Ids that the template writes after the stop token of an answer, which no model ever writes itself."""
        return self._after_answer[1:] if self._stop_id is not None else ()

    @functools.cached_property
    def _stops(self) -> frozenset[str]:
        names = self.tokenizer.special_names
        return frozenset(names[token] for token in self.tokenizer.stop_ids if token in names)

    @functools.cached_property
    def other_content(self) -> tuple[str, ...]:
        """The template's digest."""
        return (hashlib.sha256(self.template.source.encode()).hexdigest(),)

    def example_of(self, fields: Mapping[str, Any]) -> Example:
        """Returns the tokens of a record and which of them are learned; raises RecordError."""
        return self.chat_example(fields)

    def chat_example(self, fields: Mapping[str, Any], pictures: PictureText | None = None) -> Example:
        """Returns the same; `pictures` writes those that stand in the messages as its marks."""
        asked = conversation_of(fields)
        if isinstance(asked, TextPair):
            if pictures is not None:
                marked = tuple(pictures.written_out(MarkedText(text, ())).text for text in asked)
                asked = TextPair(*marked)
            return self._joined(asked)
        self._check_template()
        if pictures is not None:
            asked = asked._replace(messages=pictures.for_template(asked.messages))
        learned = learned_text(
            self.template, asked, answers=self.config.answers, stops=self._stops, day=self.config.day
        )
        ids, weights = self._encoded(learned if pictures is None else pictures.written_out(learned))
        return self._checked(ids, weights, "messages")

    def _joined(self, pair: TextPair) -> Example:
        """Returns prompt and completion as one text, whose end token is learned too."""
        text = pair.prompt + pair.completion
        ids, weights = self._encoded(MarkedText(text, ((len(pair.prompt), len(text)),) if pair.completion else ()))
        prefix = np.array(self.tokenizer.prefix_ids, np.int32)
        weights = np.concatenate([np.zeros(len(prefix)), weights])
        ids = np.concatenate([prefix, ids])
        if pair.completion:
            ids, weights = np.append(ids, self.tokenizer.eos_id), np.append(weights, 1.0)
        return self._checked(ids, weights, "completion")

    def _encoded(self, learned: MarkedText) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids, and 1 for those that cover a learned character, else 0."""
        ids, ranges = self.tokenizer.encode_ranges(learned.text)
        weights = np.zeros(len(ids), np.float32)
        for begin, end in learned.spans:
            # A token of no characters, such as a space that its tokenizer leaves out, is where it begins.
            weights[(ranges[:, 0] < end) & (np.maximum(ranges[:, 1], ranges[:, 0] + 1) > begin)] = 1.0
        return ids, weights

    def _checked(self, ids: np.ndarray, weights: np.ndarray, at: str) -> Example:
        if not weights[1:].any():
            if not self.config.may_lack_answer:
                raise RecordError(at=at, why="nothing of it is an answer to learn")
            # A row's last token is a target only, and the whole prompt has to be an input.
            ids, weights = np.append(ids, self.tokenizer.eos_id), np.append(weights, 0.0)
        if len(ids) < 2:
            raise RecordError(at=at, why="it is empty")
        return Example(ids, weights)

    def cut_example(self, example: Example, tokens: int) -> Example:
        """Returns the first tokens; raises RecordError where no answer is among them."""
        cut = super().cut_example(example, tokens)
        if cut.weights is not None and not cut.weights[1:].any():
            why = (
                f"{len(example.ids):,} tokens, and no answer begins in the first {tokens - 1:,} (data.sequence_length)"
            )
            raise RecordError(at="messages", why=why)
        return cut

    def _check_template(self) -> None:
        """Raises UsageError where the tokenizer comes without a template."""
        if not self.template.own:
            message = (
                f"{self.config.tokenizer_file} comes without a chat template, so that messages can't be written as its "
                "model reads them; set data.template_file to a Jinja file, or give prompt and completion as texts"
            )
            raise UsageError(message)
