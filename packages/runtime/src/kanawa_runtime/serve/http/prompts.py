"""A request's prompts as ids: tokenized beside the loop, cut where asked, and refused where they don't fit."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.serve.engine.request import EngineLimits
from kanawa_runtime.serve.http.errors import ApiError, invalid, shown
from kanawa_runtime.serve.http.fields import Listed, Text, Whole
from kanawa_runtime.serve.http.limits import ServerConfig

#: A token of any vocabulary in use stands for no more characters than this, but in oddities such as runs of blanks.
_CHARACTERS_A_TOKEN = 128


@dataclasses.dataclass(frozen=True)
class PromptKind:
    """One prompt or several, each a text or a list of ids."""

    limits: EngineLimits
    config: ServerConfig

    def fits(self, value: Any) -> bool:
        """Returns whether it may be one."""
        return isinstance(value, str | list)

    def read(self, value: Any, at: str) -> list[str | list[int]]:
        """Returns the prompts, at least one."""
        if isinstance(value, str):
            return [self._text.read(value, at)]
        if not isinstance(value, list):
            raise invalid(at, f"expected {self.named()}, got {shown(value)}")
        if value and all(isinstance(item, int) for item in value):
            return [self._ids.read(value, at)]
        if not 1 <= len(value) <= self.config.max_prompts:
            most = self.config.max_prompts
            raise invalid(at, f"it holds {len(value):,} prompts, expected 1 to {most} (max_prompts)")
        return [
            (self._text if isinstance(item, str) else self._ids).read(item, f"{at}[{index}]")
            for index, item in enumerate(value)
        ]

    @property
    def _text(self) -> Text:
        return Text(self.config.max_body_bytes)

    @property
    def _ids(self) -> Listed:
        # More than fit is an error of its own, and what truncation cuts off counts as given.
        return Listed(Whole(0, self.limits.vocab_size - 1), self.config.max_body_bytes, 1)

    def schema(self) -> dict[str, Any]:
        """Returns the schema."""
        text, ids = self._text.schema(), self._ids.schema()
        several = [{"type": "array", "items": item, "minItems": 1, "maxItems": 64} for item in (text, ids)]
        return {"anyOf": [text, ids, *several]}

    def named(self) -> str:
        """Returns its name."""
        return "a text, a list of token ids, or a list of either"


@dataclasses.dataclass(frozen=True)
class PromptReader:
    """Tokenizes and measures prompts for one model; called in a worker thread."""

    tokenizer: Tokenizer
    limits: EngineLimits

    def ids(self, prompt: str | Sequence[int], body: Mapping[str, Any], *, prefix: bool, field: str) -> list[int]:
        """Returns the ids of a prompt, with what the tokenizer begins texts with where `prefix`, cut as asked for."""
        keep = body.get("truncate_prompt_tokens")
        if isinstance(prompt, str):
            if keep is None and len(prompt) > self.limits.max_length * _CHARACTERS_A_TOKEN:
                # Tokenizing megabytes to count them would keep a thread busy for nothing.
                raise self._too_long(field, f"{len(prompt):,} characters")
            if keep is not None:
                # Of what is cut off anyway, no more is tokenized than the rest may need.
                prompt = prompt[-self.limits.max_length * _CHARACTERS_A_TOKEN :]
            encoded = self.tokenizer.encode(prompt).tolist()
            start = list(self.tokenizer.prefix_ids) if prefix else []
            ids = start + encoded or [self.tokenizer.bos_id]
        else:
            ids = list(prompt)
        if keep is not None:
            most = self.limits.max_length - 1 if keep == -1 else keep
            ids = ids[len(ids) - most :] if 0 < most < len(ids) else ids
        if len(ids) >= self.limits.max_length:
            raise self._too_long(field, f"{len(ids):,} tokens")
        return ids

    def room(self, prompt: Sequence[int], asked: int | None, field: str, *, otherwise: int | None = None) -> int:
        """Returns how many tokens an answer may have: as asked, else `otherwise`, else what fits.

        Raises the 400 of a request for more than fit.
        """
        left = self.limits.max_length - len(prompt)
        if asked is None:
            return left if otherwise is None else min(left, otherwise)
        if asked > left:
            message = (
                f"the prompt has {len(prompt):,} tokens and {asked:,} new ones are asked for, together more than the "
                f"{self.limits.max_length:,} that this model is served with; ask for at most {left:,}, or shorten the "
                "prompt (truncate_prompt_tokens)"
            )
            raise invalid(field, message, "context_length_exceeded")
        return asked

    def _too_long(self, field: str, has: str) -> ApiError:
        message = (
            f"it has {has}, and prompt and answer together may have {self.limits.max_length:,} tokens; shorten it, or "
            "let truncate_prompt_tokens cut it"
        )
        return invalid(field, message, "context_length_exceeded")
