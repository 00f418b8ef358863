"""A conversation with a model in this process, turn by turn; earlier turns are in the engine's prefix cache."""

import dataclasses
import queue
import uuid
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from kanawa.errors import UsageError

from kanawa_runtime.data.chats.picture_marks import PICTURE
from kanawa_runtime.data.chats.template import turns
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.engine.request import Output, Request, SamplingParams
from kanawa_runtime.serve.growing_text import GrowingText
from kanawa_runtime.serve.http.sampling import PromptReader

if TYPE_CHECKING:
    from kanawa_runtime.serve.http.served_model import ServedModel


class Conversation:
    """Messages so far. The model's engine has to be running."""

    def __init__(self, model: "ServedModel", system: str | None, sampling: SamplingParams) -> None:
        self._model = model
        self._sampling = sampling
        self._system = [{"role": "system", "content": system}] if system else []
        self._reader = PromptReader(model.tokenizer, model.engine.limits, pictures=model.pictures)
        self.messages: list[dict[str, Any]] = []
        #: Those of all messages, in order.
        self._pictures: tuple[Picture, ...] = ()
        self.num_tokens = 0

    def reset(self) -> None:
        """Removes all turns."""
        self.messages, self._pictures = [], ()

    def answer(self, text: str, pictures: Sequence[Picture] = ()) -> Generator[str, None, None]:
        """Yields the answer to a message as it grows; closing the iterator ends it, with what was written so far.

        `pictures` come before the message's text. Raises UsageError where the conversation has become too long; the
        message is then not added.
        """
        marks, template = self._model.pictures, self._model.template
        content: Any = [*(dict(PICTURE) for _ in pictures), {"type": "text", "text": text}] if pictures else text
        asked = [*self.messages, {"role": "user", "content": content}]
        messages = [*self._system, *asked]
        messages = messages if marks is None else marks.for_template(messages)
        prompt = template.render(turns(messages, add_generation_prompt=True))
        seen = (*self._pictures, *pictures)
        ids = self._reader.ids(prompt, prefix=not template.own, field="the conversation", num_pictures=len(seen))
        sampling = self._fitting(len(ids))
        request = Request(id=f"turn-{uuid.uuid4().hex}", prompt_ids=tuple(ids), sampling=sampling, pictures=seen)
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        growing, pieces = GrowingText(self._model.tokenizer, ids), []
        self.num_tokens = 0
        self._model.text_engine.submit(request, outputs.put)
        try:
            for piece in self._pieces(outputs, growing):
                pieces.append(piece)
                yield piece
        finally:
            self._model.text_engine.cancel(request.id)
            self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
            self._pictures = seen

    def _pieces(self, outputs: Any, growing: GrowingText) -> Generator[str, None, None]:
        while True:
            output: Output = outputs.get()
            self.num_tokens += len(output.token_ids)
            yield "".join(growing.push(token) for token in output.token_ids)
            if output.finish_reason == "error":
                message = f"the engine failed: {output.error}"
                raise UsageError(message)
            if output.finish_reason is not None:
                yield growing.finish()
                return

    def _fitting(self, used: int) -> SamplingParams:
        room = self._model.text_engine.limits.max_length - used
        return dataclasses.replace(self._sampling, max_tokens=min(self._sampling.max_tokens, room))
