"""The text after a prompt, as it grows token by token."""

from collections.abc import Iterable

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.growing_text import GrowingText
from kanawa_runtime.serve.healing import HealedPrompt

#: U+2400 and on show the control characters, U+2421 delete. C1 controls have no pictures.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class Continuation:
    """The text that new ids add to a prompt, in whole characters, without the prompt's last blanks."""

    def __init__(self, tokenizer: Tokenizer, prompt: HealedPrompt) -> None:
        self._growing = GrowingText(tokenizer, prompt.ids)
        #: What the first text begins with, since it was taken back from the prompt.
        self._again = prompt.blanks.decode()

    def push(self, ids: Iterable[int]) -> str:
        """Returns the text that became certain; possibly empty."""
        return self._new("".join(self._growing.push(token) for token in ids))

    def finish(self) -> str:
        """Returns what is left of an incomplete last character."""
        return self._new(self._growing.finish())

    def _new(self, text: str) -> str:
        if not text:
            return ""
        again, self._again = self._again, ""
        return text.removeprefix(again)


def visible(text: str) -> str:
    """Returns the text with control characters as pictures of them, line ends and tabs aside.

    What a model writes can't be trusted: on a terminal an escape could move the cursor, or worse.
    """
    return text.translate(_PICTURES)


def continued(tokenizer: Tokenizer, prompt: HealedPrompt, ids: Iterable[int]) -> str:
    """Returns the whole text after a prompt."""
    growing = Continuation(tokenizer, prompt)
    return growing.push(ids) + growing.finish()
