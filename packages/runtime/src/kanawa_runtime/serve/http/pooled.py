"""`/v1/embeddings`, `/v1/rerank` and `/classify`: vectors and labels of texts, gathered into batches by their engine.

Sources: OpenAI's "Create embeddings", Cohere's and Jina's "Rerank", vLLM's `/classify`.
"""

import abc
import asyncio
import base64
import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, Tag

from kanawa_runtime.serve.http.errors import invalid, unavailable, unprocessable
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.protocol import NewTokens
from kanawa_runtime.serve.http.route import ANSWERS, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.validation import Fields, Length, Name, by_type
from kanawa_runtime.serve.pooling.engine import PoolingEngine

_MOST_TEXTS = 2048
_Text = Annotated[str, Length(1_000_000)]
_Texts = Annotated[list[_Text], Field(fail_fast=True, min_length=1, max_length=_MOST_TEXTS)]
_TextOrTexts = Annotated[
    Annotated[_Text, Tag("(text)")] | Annotated[_Texts, Tag("(list)")], by_type("a text or a list of texts")
]


def routes(service: Service) -> Iterator[Operation]:
    """Yields the routes of a model whose texts are pooled."""
    engine = service.model.engine
    if isinstance(engine, PoolingEngine):
        embeddings, rerank, classify = Embeddings(service, engine), Rerank(service, engine), Classify(service, engine)
        yield Operation("POST", "/v1/embeddings", "Embed texts", embeddings, "api", embeddings.body, refuses=ANSWERS)
        yield Operation("POST", "/v1/rerank", "Order documents", rerank, "api", rerank.body, refuses=ANSWERS)
        yield Operation("POST", "/classify", "Label texts", classify, "api", classify.body, refuses=ANSWERS)


class _PooledRequest(Fields):
    IGNORED = frozenset(("user", "priority"))
    model: Name | None = Field(None, description="one of /v1/models; may be left out")
    truncate_prompt_tokens: NewTokens | None = Field(None, description="keep the first so many tokens of each text")


class EmbeddingsRequest(_PooledRequest):
    """The body of `/v1/embeddings`."""

    input: _TextOrTexts = Field(description="a text or a list of texts")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: NewTokens | None = Field(None, description="the first so many numbers, of length 1 again")


class ClassifyRequest(_PooledRequest):
    """The body of `/classify`."""

    input: _TextOrTexts = Field(description="a text or a list of texts")


class RerankRequest(_PooledRequest):
    """The body of `/v1/rerank`."""

    IGNORED = _PooledRequest.IGNORED | {"max_tokens_per_doc"}
    query: _Text
    documents: _Texts = Field(description="a list of texts")
    top_n: NewTokens | None = Field(None, description="the best so many; all unless given")
    return_documents: bool = True


class Pooled(abc.ABC):
    """What these endpoints share: texts to ids, their vectors, and the limits of chats."""

    body: type[_PooledRequest]

    def __init__(self, service: Service, engine: PoolingEngine) -> None:
        self.service = service
        self.engine = engine

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self.service
        service.check_ready()
        request: Any = await service.read_request(self.body, exchange, is_queued=True)
        service.adapter(request.model)
        with service.counted(exchange.client):
            async with exchange.while_connected():
                made = await self.answer(exchange, request)
            content = await service.in_worker(exchange, made)
        await exchange.answer(content)

    @abc.abstractmethod
    async def answer(self, exchange: Exchange, request: Any) -> Any:
        """Returns a function that makes the response, in a worker's thread."""

    async def vectors(
        self, exchange: Exchange, request: _PooledRequest, texts: list[Any], field: str
    ) -> tuple[np.ndarray, int]:
        """Returns the vectors of texts, or of pairs of them, and how many tokens they have; raises their ApiErrors."""
        service, most = self.service, service_limit(self.service)
        if len(texts) > most:
            raise invalid(at=field, why=f"there are {len(texts)} texts, and a client may have {most} read at once")
        encoded = await service.in_worker(exchange, self._encoded, request, texts, field)
        late = "the texts weren't read in the time that a request may take"
        async with service.answering(exchange.client, len(texts), late):
            asked = [asyncio.wrap_future(self.engine.pool(*one, exchange.client)) for one in encoded]
            found = np.stack(await asyncio.gather(*asked))
        if not np.isfinite(found).all():
            message = "the model's numbers are no longer finite"
            raise unavailable(message, 1, "engine_error")
        return found, sum(len(ids) for ids, _ in encoded)

    def _encoded(self, request: _PooledRequest, texts: list[Any], field: str) -> list[tuple[np.ndarray, np.ndarray]]:
        tokenizer, most = self.service.model.tokenizer, self.engine.limits.max_length
        self.service.check_texts(texts, field)
        made = []
        for place, text in enumerate(texts):
            ids, types = tokenizer.encode_whole(*(text if isinstance(text, tuple) else (text,)))
            if request.truncate_prompt_tokens is not None:
                ids, types = ids[: request.truncate_prompt_tokens], types[: request.truncate_prompt_tokens]
            if len(ids) > most:
                why = (
                    f"it has {len(ids):,} tokens, expected at most {most:,}; shorten it, or set truncate_prompt_tokens"
                )
                raise invalid(at=f"{field}[{place}]" if len(texts) > 1 else field, why=why)
            made.append((ids, types))
        return made

    def head(self, prefix: str, request: _PooledRequest) -> dict[str, Any]:
        """Returns what responses begin with."""
        return {"id": f"{prefix}-{uuid.uuid4().hex}", "model": request.model or self.service.model.name}


def service_limit(service: Service) -> int:
    """Returns how many texts one client may have read at once."""
    return service.answers.most_at_once


class Embeddings(Pooled):
    """`/v1/embeddings`."""

    body = EmbeddingsRequest

    async def answer(self, exchange: Exchange, request: EmbeddingsRequest) -> Any:
        """As `Pooled`."""
        if self.engine.pooling == "labels":
            raise unprocessable(at="model", why="this model labels texts; serve it with --pool first, last or mean")
        texts = [request.input] if isinstance(request.input, str) else request.input
        found, tokens = await self.vectors(exchange, request, texts, "input")
        if request.dimensions is not None and request.dimensions > found.shape[1]:
            raise invalid(at="dimensions", why=f"{request.dimensions} is more than the model's {found.shape[1]}")
        vectors = unit(found[:, : request.dimensions])

        def made() -> dict[str, Any]:
            data = [
                {"object": "embedding", "index": place, "embedding": written(vector, request.encoding_format)}
                for place, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return {"object": "list", **self.head("embd", request), "data": data, "usage": usage}

        return made


class Classify(Pooled):
    """`/classify`."""

    body = ClassifyRequest

    async def answer(self, exchange: Exchange, request: ClassifyRequest) -> Any:
        """As `Pooled`."""
        labels = self.engine.labels
        if labels is None or self.engine.pooling != "labels":
            raise unprocessable(at="model", why="this model has no labels; train some with --modify classify")
        texts = [request.input] if isinstance(request.input, str) else request.input
        logits, tokens = await self.vectors(exchange, request, texts, "input")
        shares = probabilities(logits)
        data = [
            {"index": i, "label": labels.names[int(row.argmax())], "probs": row.tolist(), "num_classes": len(row)}
            for i, row in enumerate(shares)
        ]
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        head = self.head("classify", request) | {"object": "list", "created": int(time.time())}
        return lambda: head | {"data": data, "usage": usage}


class Rerank(Pooled):
    """`/v1/rerank`: by a model of one label, which reads query and document together, else by their vectors' cosine."""

    body = RerankRequest

    async def answer(self, exchange: Exchange, request: RerankRequest) -> Any:
        """As `Pooled`."""
        labels, documents = self.engine.labels, request.documents
        if self.engine.pooling != "labels":
            texts = [request.query, *documents]
            found, tokens = await self.vectors(exchange, request, texts, "documents")
            vectors = unit(found)
            scores = vectors[1:] @ vectors[0]
        elif labels is not None and len(labels.names) == 1:
            pairs = [(request.query, document) for document in documents]
            logits, tokens = await self.vectors(exchange, request, pairs, "documents")
            scores = probabilities(logits)[:, 0]
        else:
            raise unprocessable(at="model", why="this model has several labels; a reranker has one, or gives vectors")
        best = np.argsort(-scores, kind="stable")[: request.top_n]
        results = [
            {"index": int(place), "relevance_score": float(scores[place])}
            | ({"document": {"text": documents[place]}} if request.return_documents else {})
            for place in best
        ]
        return lambda: self.head("rerank", request) | {"results": results, "usage": {"total_tokens": tokens}}


def unit(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors of length 1, fp32; zeros stay."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Returns the softmax over labels; of one label the sigmoid."""
    wide = logits.astype(np.float64)
    if wide.shape[1] == 1:
        return 1.0 / (1.0 + np.exp(-wide))
    shares = np.exp(wide - wide.max(axis=1, keepdims=True))
    made: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return made


def written(vector: np.ndarray, encoding: str) -> list[float] | str:
    """Returns a vector as JSON has it: numbers, or base64 of little-endian fp32."""
    return vector.tolist() if encoding == "float" else base64.b64encode(vector.astype("<f4").tobytes()).decode()
