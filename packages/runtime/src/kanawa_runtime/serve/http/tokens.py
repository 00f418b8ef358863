"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them."""

import functools
from collections.abc import Mapping
from typing import Any

from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.fields import AnyObject, Field, Flag, Listed, Shaped, Text, Whole
from kanawa_runtime.serve.http.messages import for_template, message_fields
from kanawa_runtime.serve.http.service import Service

#: Tokenizing takes the interpreter's time, and the engine needs some of it.
_MOST_CHARACTERS = 1_000_000


class Tokenize:
    """The ids of a text or of a conversation."""

    def __init__(self, service: Service) -> None:
        self._service = service
        chat = message_fields(service.config)
        self.body = Shaped(
            {
                "model": Field(Text(256)),
                "prompt": Field(Text(_MOST_CHARACTERS), help="a text; or messages"),
                "messages": Field(chat["messages"].kind),
                "tools": chat["tools"],
                "add_special_tokens": Field(Flag(), help="for a prompt true, for messages false, unless given"),
                "add_generation_prompt": Field(Flag(), True),
                "chat_template_kwargs": Field(AnyObject()),
                "return_token_strs": Field(Flag(), False),
            }
        )

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        body = await self._service.checked(self.body, exchange)
        if (body["prompt"] is None) == (body["messages"] is None):
            raise invalid(at="prompt", why="give a prompt or messages, one of them")
        self._service.adapter(body["model"])
        made = functools.partial(self._tokenize, body)
        await self._service.answer(exchange, made, is_long=True)

    def _tokenize(self, body: Mapping[str, Any]) -> dict[str, Any]:
        model = self._service.model
        prefix, text = body["add_special_tokens"], body["prompt"]
        if text is None:
            text = model.template.render(
                for_template(body["messages"]),
                body["tools"],
                add_generation_prompt=body["add_generation_prompt"],
                extra=body["chat_template_kwargs"],
            )
            prefix = not model.template.own if prefix is None else prefix
        encoded = model.tokenizer.encode(text).tolist()
        ids = (list(model.tokenizer.prefix_ids) if prefix or prefix is None else []) + encoded
        made = {"count": len(ids), "max_model_len": model.engine.limits.max_length, "tokens": ids}
        if body["return_token_strs"]:
            tokens, special = model.tokenizer.tokens, model.special
            made["token_strs"] = [special.get(i) or tokens[i].decode("utf-8", "replace") for i in ids]
        return made


class Detokenize:
    """The text of ids."""

    def __init__(self, service: Service) -> None:
        self._service = service
        ids = Whole(0, service.model.engine.limits.vocab_size - 1)
        most = service.config.max_body_bytes
        self.body = Shaped({"model": Field(Text(256)), "tokens": Field(Listed(ids, most), required=True)})

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        body = await self._service.checked(self.body, exchange)
        self._service.adapter(body["model"])
        tokenizer = self._service.model.tokenizer
        known = [i for i in body["tokens"] if i < tokenizer.vocab_size]
        await self._service.answer(exchange, lambda: {"prompt": tokenizer.decode(known)}, is_long=True)


class TokenizerInfo:
    """The texts of special tokens, and the template: `lm-eval` counts a prompt's tokens with them."""

    def __init__(self, service: Service) -> None:
        self._model = service.model

    async def __call__(self, exchange: Exchange) -> None:
        """Answers with them."""
        model, tokenizer = self._model, self._model.tokenizer
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
        texts = {name: model.special.get(token_id) for name, token_id in ids.items()}
        rest = {"model_max_length": model.engine.limits.max_length, "chat_template": model.template.source}
        await exchange.answer({"tokenizer_class": type(tokenizer).__name__} | texts | rest)
