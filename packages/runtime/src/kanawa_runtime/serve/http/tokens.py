"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them."""

import functools
from typing import Any

from kanawa_runtime.serve.http.chat_template import messages_for_template, tools_for_template
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.protocol import TokenizeRequest, detokenize_request, tokenize_request
from kanawa_runtime.serve.http.service import Service


class Tokenize:
    """The ids of a text or of a conversation."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.body = tokenize_request(service.config)

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        request = await self._service.read_request(self.body, exchange)
        self._service.adapter(request.model)
        made = functools.partial(self._tokenize, request)
        await exchange.answer(await self._service.json(made, is_long=True))

    def _tokenize(self, request: TokenizeRequest) -> dict[str, Any]:
        model = self._service.model
        prefix, text = request.add_special_tokens, request.prompt
        if text is None:
            text = model.template.render(
                messages_for_template(request.messages or ()),
                tools_for_template(request.tools),
                add_generation_prompt=request.add_generation_prompt,
                extra=request.chat_template_kwargs,
            )
            prefix = not model.template.own if prefix is None else prefix
        encoded = model.tokenizer.encode(text).tolist()
        ids = (list(model.tokenizer.prefix_ids) if prefix or prefix is None else []) + encoded
        made = {"count": len(ids), "max_model_len": model.engine.limits.max_length, "tokens": ids}
        if request.return_token_strs:
            tokens, special = model.tokenizer.tokens, model.special
            made["token_strs"] = [special.get(i) or tokens[i].decode("utf-8", "replace") for i in ids]
        return made


class Detokenize:
    """The text of ids."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.body = detokenize_request(service.model.engine.limits)

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        request = await self._service.read_request(self.body, exchange)
        self._service.adapter(request.model)
        tokenizer = self._service.model.tokenizer
        known = [i for i in request.tokens if i < tokenizer.vocab_size]
        await exchange.answer(await self._service.json(lambda: {"prompt": tokenizer.decode(known)}, is_long=True))


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
