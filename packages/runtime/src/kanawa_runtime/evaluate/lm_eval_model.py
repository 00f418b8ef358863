"""lm-eval's model interface over a run or a folder, in lm-eval's own process.

    python -m kanawa_runtime.evaluate.lm_eval_model run --model kanawa --model_args pretrained=runs/base --tasks words

is lm-eval's command line with one model more; in Python, `lm_eval.simple_evaluate(KanawaLM("runs/base"), tasks=[…])`.
Needs the extra `lm-eval`. Written against `lm_eval.api.model.LM` of lm-eval 0.4.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kanawa.contracts import CausalLM
from kanawa.errors import UsageError
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from kanawa_runtime.data.tokenizers.load import no_tokenizer, tokenizer_of
from kanawa_runtime.evaluate.answers import AnswerWriter
from kanawa_runtime.evaluate.encoding import DEFAULT_LENGTH, RequestEncoder, Scored
from kanawa_runtime.evaluate.likelihood import LikelihoodScorer
from kanawa_runtime.evaluate.task_file import read_generation
from kanawa_runtime.process import prepare_process
from kanawa_runtime.runs.open_run import open_run

#: What messages about lm-eval's arguments name as their place.
_PLACE = Path("lm-eval")
_SEED = 1234


@register_model("kanawa")
class KanawaLM(LM):  # type: ignore[misc]
    """A causal model of a run or a Hugging Face folder; `pretrained` is its path or address.

    `max_length` are the tokens that it takes, those it was trained on by default. `batch_size`, `max_batch_size` and
    `device`, which lm-eval passes to any model, do nothing: rows are packed, and `on` is the target to run on.
    """

    def __init__(
        self,
        pretrained: str,
        max_length: int | None = None,
        on: str | None = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
    ) -> None:
        del batch_size, max_batch_size, device
        super().__init__()
        prepare_process()
        self._opened = opened = open_run(pretrained, target=on, serves=True)
        tokenizer = tokenizer_of(opened)
        if tokenizer is None:
            raise no_tokenizer(opened)
        model, mesh = opened.trainer.model, opened.environment.mesh
        if not isinstance(model, CausalLM):
            message = f"{pretrained} holds a {type(model).__qualname__}, which continues no text; only CausalLMs do"
            raise UsageError(message)
        self._encoder = RequestEncoder(tokenizer, max_length or opened.trained_length or DEFAULT_LENGTH)
        self._scorer = LikelihoodScorer(model, opened.environment, multiple=1 if mesh is None else mesh.size)
        self._writer = AnswerWriter(model, tokenizer, opened.environment, self._encoder.max_length)

    @property
    def max_length(self) -> int:
        """The tokens that the model takes."""
        return self._encoder.max_length

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's cache of requests is kept by."""
        return self._encoder.tokenizer.digest

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns the log-probability of each continuation, and whether it is the greedy one."""
        del disable_tqdm
        pairs = (request.args for request in requests)
        pieces = [self._encoder.pair(context, continuation, "lm-eval") for context, continuation in pairs]
        return [(one[0], one[1]) for one in self._scored(pieces)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-probability of each whole text."""
        del disable_tqdm
        windows = [self._encoder.whole(request.args[0]) for request in requests]
        scored = iter(self._scored([piece for each in windows for piece in each]))
        return [sum(next(scored)[0] for _ in each) for each in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns an answer to each context; requests with equal settings are written side by side."""
        del disable_tqdm
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(index)
        answers = [""] * len(requests)
        for members in groups.values():
            generation = read_generation(_PLACE, dict(requests[members[0]].args[1]), "")
            prompts = [
                self._encoder.prompt(requests[index].args[0], generation.max_tokens, "lm-eval") for index in members
            ]
            texts = self._writer.write(self._opened.params, self._opened.state, prompts, generation, _SEED)
            for index, text in zip(members, texts or (), strict=True):
                answers[index] = text
        return answers

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Raises UsageError: a conversation's text belongs to the server, which has the folder's template."""
        message = (
            "--model kanawa takes no chat templates: serve the model, and give lm-eval --model local-chat-completions"
        )
        raise UsageError(message)

    def _scored(self, pieces: Sequence[Scored]) -> Sequence[tuple[float, bool]]:
        opened = self._opened
        found = self._scorer.score(opened.params, opened.state, self._scorer.batches(pieces), len(pieces))
        return found or ()


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
