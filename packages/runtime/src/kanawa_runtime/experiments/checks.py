"""What of an experiment's data doesn't fit its model, found while composing, so that nothing starts in vain."""

from typing import Any

from kanawa.contracts import CausalLM, MaskedLM
from kanawa.errors import KanawaError

from kanawa_runtime.train.placement import check_vocabulary


def data_problems(config: Any) -> list[str]:
    """Returns what is wrong, one sentence each; nothing where the data can't be asked yet.

    A tokenizer that can't be read here may be there where the run starts: that is for the run to say.
    """
    kind = config.model._target
    if kind is None or not issubclass(kind, CausalLM | MaskedLM):
        return []
    try:
        problem = check_vocabulary(config.data.build(), config.model.vocab_size)
    except KanawaError:
        return []
    return [problem] if problem else []
