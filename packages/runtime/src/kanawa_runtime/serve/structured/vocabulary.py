"""A tokenizer as llguidance knows it: the bytes of each id, and which ids are special."""

from typing import TYPE_CHECKING, Any

from kanawa.errors import UsageError

if TYPE_CHECKING:  # it imports JAX, and the kinds of structures are read without
    import llguidance

    from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer


class _Words:
    """The Python interface of a tokenizer that llguidance needs."""

    bos_token_id = None

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, stop_ids: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        names = dict(tokenizer.special_names)
        # A stop id without a name of its own gets one: the library knows no nameless special tokens.
        names |= {i: f"<|stop-{i}|>" for i in stop_ids if i not in names}
        known = tokenizer.known
        # A model's vocabulary may be padded, or lack the last tokens of its tokenizer. Empty words are never allowed.
        words = [token if known[i] else b"" for i, token in enumerate(tokenizer.tokens[:vocab_size])]
        words += [b""] * (vocab_size - len(words))
        self.special_token_ids = sorted(i for i in names if i < vocab_size)
        for i in self.special_token_ids:
            words[i] = names[i].encode()
        self.tokens = words
        self.eos_token_id = stop_ids[0]
        special = set(self.special_token_ids)
        self._index = {word: i for i, word in enumerate(words) if word and i not in special}
        self._longest = max(map(len, self._index), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        """Returns the ids of a text in the middle of an output; where only one text may follow, those are its mask."""
        wanted = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        # Some tokenizers put a space before every text: an odd character takes it, and is cut off with it.
        for before in (b"", b"\x02"):
            ids = [int(i) for i in self._tokenizer.encode(before + wanted)]
            for start in range(len(ids)):
                if b"".join(self.tokens[i] for i in ids[start:]) == wanted:
                    return ids[start:]
        return self._longest_words(wanted)

    def _longest_words(self, text: bytes) -> list[int]:
        """Returns the longest word at each place; nothing from where no word fits, which leaves that to the masks."""
        ids, at = [], 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            index = next((i for end in ends if (i := self._index.get(text[at:end])) is not None), None)
            if index is None:
                break
            ids.append(index)
            at += len(self.tokens[index])
        return ids


def library() -> Any:
    """Returns the llguidance module; raises UsageError that names the extra where it isn't installed."""
    try:
        import llguidance
    except ModuleNotFoundError as error:
        message = 'structured output needs llguidance: pip install "kanawa[serve]"'
        raise UsageError(message) from error
    return llguidance


def llguidance_tokenizer(
    tokenizer: "Tokenizer", vocab_size: int, stop_ids: tuple[int, ...]
) -> "llguidance.LLTokenizer":
    """Returns what llguidance makes masks of `vocab_size` bits with; `stop_ids` may follow a complete output.

    Raises UsageError without any stop id that the model can draw: an output could never end.
    """
    drawn = tuple(i for i in stop_ids if 0 <= i < vocab_size)
    if not drawn:
        message = (
            f"structured output ends with a stop token, and of the tokenizer's stop ids {list(stop_ids)} none is in "
            f"the model's vocabulary of {vocab_size}; name one in the folder's generation_config.json (eos_token_id)"
        )
        raise UsageError(message)
    made = library()
    words = made.TokenizerWrapper(_Words(tokenizer, vocab_size, drawn))
    tokens: llguidance.LLTokenizer = made.LLTokenizer(words, n_vocab=vocab_size, eos_token=list(drawn))
    return tokens
