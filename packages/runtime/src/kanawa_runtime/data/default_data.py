"""The data of a model that came without any: text, where its vocabulary has room for a tokenizer of text."""

from typing import Any

from kanawa.contracts import DataSource, MaskedLM

from kanawa_runtime.data.masked import MaskedTokens
from kanawa_runtime.data.random_tokens import RandomTokens
from kanawa_runtime.data.source import TextSource
from kanawa_runtime.data.tokenizers.bpe import BytePairTokenizer
from kanawa_runtime.data.tokenizers.special_ids import FIRST_LEARNED_ID


def default_data(model: Any, sequence_length: int) -> DataSource.Config:
    """Returns rows that a CausalLM's or MaskedLM's config can learn; all ids fit the model's vocabulary.

    The text is Python's own library, its tokenizer learned from it and at most as large as the model's vocabulary.
    """
    masked = issubclass(model._target, MaskedLM)
    # A masked model needs one more id, for what is hidden.
    room = model.vocab_size - masked
    source: DataSource.Config
    if room > FIRST_LEARNED_ID:
        tokenizer = BytePairTokenizer.Config()
        if room < tokenizer.vocab_size:
            tokenizer.set(vocab_size=room)
        source = TextSource.Config(sequence_length=sequence_length, tokenizer=tokenizer)
    else:
        source = RandomTokens.Config(sequence_length=sequence_length, vocab_size=room)
    return MaskedTokens.Config(sequence_length=sequence_length, source=source) if masked else source
