"""Text or token ids after prompts, with an opened run's model."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from kanawa.contracts import CausalLM, Generated
from kanawa.errors import UsageError
from kanawa.local_path import local_path

from kanawa_runtime.data.tokenizers.load import no_tokenizer, tokenizer_of
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.imported import outline_of
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.runs.tokenizer_file import TokenizerError
from kanawa_runtime.serve.continuation import Continuation
from kanawa_runtime.serve.generate import Completion, Generator
from kanawa_runtime.serve.healing import HealedPrompt, first_tokens, heal
from kanawa_runtime.serve.sampling import SamplingConfig
from kanawa_runtime.storage.place import address_of

#: New tokens where nothing is said.
TOKENS = 128
Prompts = Sequence[str] | Sequence[list[int]]


def check_generates(directory: str | Path) -> None:
    """Raises UsageError for a model of another kind, before opening it would ask for data to train it on."""
    # Other libraries' folders lie on this machine.
    stored = None if address_of(str(directory)) else outline_of(local_path(str(directory)))
    kind = None if stored is None else stored.config._target
    if kind is not None and not issubclass(kind, CausalLM):
        message = f"{directory}: {kind.__qualname__} continues no prompt; models that do are CausalLMs"
        raise UsageError(message)


def generated(
    opened: OpenedRun, prompts: Prompts, max_tokens: int, sampling: SamplingConfig, every: int
) -> Iterator[list[Generated]]:
    """Yields what there is after each prompt, after every `every` tokens; texts only grow.

    Raises UsageError for text without a tokenizer, ids outside of the vocabulary, and prompts of both kinds.
    """
    if len({isinstance(prompt, str) for prompt in prompts}) != 1:
        message = f"expected prompts that are all text or all token ids, found {list(prompts)!r}"
        raise UsageError(message)
    is_text = isinstance(prompts[0], str)
    tokenizer = _tokenizer(opened, is_needed=is_text)
    if is_text and tokenizer is None:
        raise no_tokenizer(opened)
    healed = _healed(prompts, tokenizer, opened.composition.config.model.vocab_size)
    model = opened.trainer.model
    if not isinstance(model, CausalLM):
        message = f"{opened.directory}: {type(model).__qualname__} continues no prompt; models that do are CausalLMs"
        raise UsageError(message)
    generator = Generator(
        model,
        opened.params,
        state=opened.state,
        environment=opened.environment,
        known=None if tokenizer is None else tokenizer.known,
    )
    stop = () if tokenizer is None else tokenizer.stop_ids
    first = None if tokenizer is None else first_tokens(tokenizer, healed)
    each: Sequence[str | list[int]] = prompts
    growing = [_Growing(prompt, one, tokenizer) for prompt, one in zip(each, healed, strict=True)]
    pieces = generator.stream([one.ids for one in healed], max_tokens, sampling, stop, first, every=every)
    return _grown(growing, pieces)


def _grown(growing: list["_Growing"], pieces: Iterator[list[Completion]]) -> Iterator[list[Generated]]:
    last: list[Generated] = []
    for completions in pieces:
        last = [one.take(completion) for one, completion in zip(growing, completions, strict=True)]
        yield last
    yield [one.finish(piece) for one, piece in zip(growing, last, strict=True)]


class _Growing:
    """One prompt's text as tokens come."""

    def __init__(self, prompt: str | list[int], healed: HealedPrompt, tokenizer: Tokenizer | None) -> None:
        self._prompt = prompt
        self._text = None if tokenizer is None else Continuation(tokenizer, healed)
        self._so_far = ""
        self._taken = 0

    def take(self, completion: Completion) -> Generated:
        """Returns what there is with a completion's new ids; an incomplete last character isn't in the text."""
        if self._text is not None:
            self._so_far += self._text.push(completion.token_ids[self._taken :])
            self._taken = len(completion.token_ids)
        text = None if self._text is None else self._so_far
        return Generated(self._prompt, text, completion.token_ids, completion.logprobs)

    def finish(self, last: Generated) -> Generated:
        """Returns the last piece with what is left of an incomplete last character."""
        if self._text is None:
            return last
        return dataclasses.replace(last, text=self._so_far + self._text.finish())


def _tokenizer(opened: OpenedRun, *, is_needed: bool) -> Tokenizer | None:
    """Returns the run's tokenizer; where prompts are ids none is needed, and one that can't be read is ignored."""
    try:
        return tokenizer_of(opened)
    except TokenizerError:
        if is_needed:
            raise
        return None


def _healed(prompts: Prompts, tokenizer: Tokenizer | None, vocab_size: int) -> list[HealedPrompt]:
    healed = []
    for prompt in prompts:
        if isinstance(prompt, str):
            assert tokenizer is not None
            healed.append(heal(tokenizer, prompt))
            continue
        outside = [i for i in prompt if not 0 <= i < vocab_size]
        if outside:
            message = f"prompt {prompt}: {outside} are outside of the vocabulary, 0 to {vocab_size - 1}"
            raise UsageError(message)
        healed.append(HealedPrompt(list(prompt), b""))
    return healed
