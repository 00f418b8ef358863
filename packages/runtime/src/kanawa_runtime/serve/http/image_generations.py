"""`/v1/images/generations`: pictures of a text, or of a label by its name.

Source: OpenAI's API reference, "Create image".
"""

import asyncio
import base64
import secrets
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from kanawa_runtime.runs.media import png_bytes
from kanawa_runtime.serve.http.errors import engine_refusals, invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.route import ANSWERS, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.validation import Fields, Length, Name
from kanawa_runtime.serve.pictures.engine import Drawing, DrawingEngine
from kanawa_runtime.serve.pictures.maker import GUIDANCE, Asked

_LONGEST_PROMPT = 32_000
_SEEDS = 2**32
_MOST_GUIDANCE = 100.0


class ImagesRequest(Fields):
    """The body of `/v1/images/generations`."""

    IGNORED = frozenset(("user", "quality", "style", "moderation"))
    REFUSED = {
        "stream": "a picture is there at once or not at all; leave it out",
        "partial_images": "a picture is there at once or not at all; leave it out",
        "output_compression": "pictures are PNG files, which lose nothing; leave it out",
    }
    prompt: Annotated[str, Length(_LONGEST_PROMPT, shortest=0)] = Field(description="a text, or the name of a label")
    model: Name | None = Field(None, description="one of /v1/models; may be left out")
    n: int = Field(1, ge=1, description="pictures, of the noise of seed, seed + 1, …")
    size: Annotated[str, Length(32)] = Field("auto", description="WIDTHxHEIGHT of the model's pictures, or auto")
    response_format: Literal["b64_json"] = Field("b64_json", description="pictures aren't stored, so they have no URL")
    output_format: Literal["png"] = "png"
    background: Literal["auto", "opaque"] = "auto"
    seed: int | None = Field(None, ge=0, lt=_SEEDS, description="of the noise; left out: drawn")
    guidance: float = Field(GUIDANCE, ge=0, le=_MOST_GUIDANCE, description="how far towards it; 1: the model as it is")


def routes(service: Service) -> Iterator[Operation]:
    """Yields the route of a model that makes pictures."""
    engine = service.model.engine
    if isinstance(engine, DrawingEngine):
        handler = ImageGenerations(service, engine)
        path = "/v1/images/generations"
        yield Operation("POST", path, "Make pictures", handler, "api", ImagesRequest, refuses=ANSWERS)


class ImageGenerations:
    """The endpoint."""

    def __init__(self, service: Service, engine: DrawingEngine) -> None:
        self._service, self._engine = service, engine

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self._service
        service.check_ready()
        request: ImagesRequest = await service.read_request(ImagesRequest, exchange, is_queued=True)
        service.adapter(request.model)
        drawings = await service.in_worker(exchange, self._drawings, request)
        with service.counted(exchange.client):
            async with exchange.while_connected():
                pictures = await self._drawn(exchange, drawings)
            content = await service.in_worker(exchange, self._answer, drawings, pictures)
        await exchange.answer(content)

    def _drawings(self, request: ImagesRequest) -> list[Drawing]:
        """Returns what is asked for; raises an ApiError for what this model can't make."""
        most, (height, width, _) = self._service.config.max_n, self._engine.wishes.made.shape
        if request.n > most:
            raise invalid(at="n", why=f"Input should be less than or equal to {most}, got {request.n} (server.max_n)")
        if request.size not in ("auto", f"{width}x{height}"):
            raise invalid(at="size", why=f"it is {request.size!r}, expected auto or {width}x{height}")
        self._service.check_texts([request.prompt], "prompt")
        with engine_refusals():
            wish = self._engine.wish(request.prompt)
        first = secrets.randbelow(_SEEDS) if request.seed is None else request.seed
        return [Drawing(Asked(wish, (first + i) % _SEEDS), request.guidance) for i in range(request.n)]

    async def _drawn(self, exchange: Exchange, drawings: list[Drawing]) -> list[np.ndarray]:
        late = "the pictures weren't made in the time that a request may take (server.max_seconds)"
        async with self._service.answering(exchange.client, len(drawings), late):
            asked = [asyncio.wrap_future(self._engine.draw(one, exchange.client)) for one in drawings]
            return list(await asyncio.gather(*asked))

    def _answer(self, drawings: list[Drawing], pictures: list[np.ndarray]) -> dict[str, Any]:
        height, width, _ = self._engine.wishes.made.shape
        made = [
            {"b64_json": base64.b64encode(png_bytes(pixels)).decode(), "seed": one.asked.seed}
            for one, pixels in zip(drawings, pictures, strict=True)
        ]
        return {"created": int(time.time()), "data": made, "output_format": "png", "size": f"{width}x{height}"}
