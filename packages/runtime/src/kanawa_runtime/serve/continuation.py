"""The text after a prompt, as it grows token by token."""

from collections.abc import Iterable

from kanawa_runtime.data.tokenizers.streaming import StreamDecoder
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.healing import HealedPrompt


class Continuation:
    """Gives out the text that new ids add to a prompt; characters are whole, and the prompt's last blanks not again."""

    def __init__(self, tokenizer: Tokenizer, prompt: HealedPrompt) -> None:
        self._decoder = StreamDecoder(tokenizer, prompt.ids)
        #: What the first text begins with, since it was taken back from the prompt.
        self._again = prompt.blanks.decode()

    def push(self, ids: Iterable[int]) -> str:
        """Returns the text that became certain; possibly empty."""
        return self._new(self._decoder.push(ids))

    def finish(self) -> str:
        """Returns what is left of an incomplete last character."""
        return self._new(self._decoder.finish())

    def _new(self, text: str) -> str:
        if not text:
            return ""
        again, self._again = self._again, ""
        return text.removeprefix(again)


def continued(tokenizer: Tokenizer, prompt: HealedPrompt, ids: Iterable[int]) -> str:
    """Returns the whole text after a prompt."""
    growing = Continuation(tokenizer, prompt)
    return growing.push(ids) + growing.finish()
