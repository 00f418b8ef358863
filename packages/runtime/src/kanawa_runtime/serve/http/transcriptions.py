"""`/v1/audio/transcriptions` and `/v1/audio/translations`: what is said in a sound file, whole or window by window.

Source: OpenAI's API reference, "Create transcription", "Create translation" and "Transcript events".
"""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from kanawa_runtime.data.speech.wave_files import SoundError, sound_samples
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.exchange import Exchange
from kanawa_runtime.serve.http.forms import FORM, read_form
from kanawa_runtime.serve.http.route import ANSWERS, EVENTS, JSON, TEXT, Operation
from kanawa_runtime.serve.http.service import Service
from kanawa_runtime.serve.http.validation import Fields, Length, Name, bad_request
from kanawa_runtime.serve.speech.engine import TranscribingEngine
from kanawa_runtime.serve.speech.transcriber import Asked, Segment, Transcriber
from kanawa_runtime.serve.speech.written import as_srt, as_vtt, whole_text

_LONGEST_PROMPT = 100_000


class TranslationRequest(Fields):
    """The form of `/v1/audio/translations`; its file is checked apart."""

    # A form's values are texts.
    model_config = ConfigDict(strict=False, extra="forbid", frozen=True)
    REFUSED = {
        "chunking_strategy": "sound is cut where it is quietest; leave it out",
        "known_speaker_names[]": "speakers aren't told apart",
        "known_speaker_references[]": "speakers aren't told apart",
    }
    model: Name | None = Field(None, description="one of /v1/models; may be left out")
    prompt: Annotated[str, Length(_LONGEST_PROMPT, shortest=0)] = Field("", description="what was said before")
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float | None = Field(None, ge=0, le=1, description="left out or 0: from 0 on until one will do")


class TranscriptionRequest(TranslationRequest):
    """The form of `/v1/audio/transcriptions`."""

    language: Annotated[str, Length(16)] | None = Field(None, description="ISO 639-1; left out: the likeliest")
    stream: bool = False
    seed: int = 0
    timestamp_granularities: list[Literal["segment"]] = Field(
        ["segment"], alias="timestamp_granularities[]", description="with verbose_json; words have no times"
    )
    include: list[Literal["logprobs"]] = Field([], alias="include[]", description="logprobs: of segments, verbose_json")


def routes(service: Service) -> Iterator[Operation]:
    """Yields the routes of a model that transcribes."""
    if isinstance(service.model.engine, TranscribingEngine):
        transcriber = Transcriber(service.model.engine, service.model.tokenizer, service.model.special)
        for task, name, body in (
            ("transcribe", "transcriptions", TranscriptionRequest),
            ("translate", "translations", TranslationRequest),
        ):
            handler, about = Transcriptions(service, transcriber, task, body), f"{task.title()} speech"
            kinds = (JSON, TEXT, EVENTS) if task == "transcribe" else (JSON, TEXT)
            path = f"/v1/audio/{name}"
            yield Operation("POST", path, about, handler, "api", body, kinds, ANSWERS, takes=FORM)


class Transcriptions:
    """Both endpoints."""

    def __init__(self, service: Service, transcriber: Transcriber, task: str, body: type[TranslationRequest]) -> None:
        self._service, self._transcriber, self._task, self._body = service, transcriber, task, body

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        service = self._service
        service.check_ready()
        service.check_queue(exchange)
        form = await read_form(exchange, with_keys=service.keys.are_required)
        try:
            request = self._body.model_validate(form.fields)
        except ValidationError as error:
            raise bad_request(error, self._body) from error
        service.adapter(request.model)
        if "file" not in form.files:
            raise invalid(at="file", why="it is missing; send a sound file under this name")
        with service.counted(exchange.client):
            samples = await service.in_worker(exchange, self._samples, form.files["file"])
            exchange.release_body()
            async with exchange.while_connected():
                segments = self._segments(exchange, request, samples)
                if isinstance(request, TranscriptionRequest) and request.stream:
                    await exchange.events(_events(segments))
                    return
                found = [one async for one in segments]
        seconds = len(samples) / self._transcriber.engine.hearing.sample_rate
        await _answer(exchange, request, self._task, seconds, found)

    def _samples(self, content: bytes) -> Any:
        rate, seconds = self._transcriber.engine.hearing.sample_rate, self._service.config.max_audio_seconds
        try:
            return sound_samples(content, rate, int(seconds * rate), converts=True)
        except SoundError as error:
            text = f"{error} (server.max_audio_seconds)" if "more than the limit" in str(error) else str(error)
            raise invalid(at="file", why=text, code="invalid_audio") from error

    async def _segments(
        self, exchange: Exchange, request: TranslationRequest, samples: Any
    ) -> AsyncIterator[tuple[str, Segment]]:
        stated = request.model_dump(include={"language", "seed"})
        asked = Asked(
            task=self._task,
            language=stated.get("language"),
            prompt=request.prompt,
            temperature=request.temperature or None,
            timed=request.response_format in ("verbose_json", "srt", "vtt"),
            seed=stated.get("seed", 0),
        )
        late = "the sound wasn't transcribed in the time that a request may take (server.max_seconds)"
        async with self._service.in_time(late):
            async for one in self._transcriber.segments(samples, asked, exchange.client):
                yield one


async def _answer(
    exchange: Exchange, request: TranslationRequest, task: str, seconds: float, found: list[tuple[str, Segment]]
) -> None:
    segments = [segment for _, segment in found]
    text, kind = whole_text(segments), request.response_format
    if kind == "json":
        await exchange.answer({"text": text, "usage": {"type": "duration", "seconds": round(seconds + 0.5)}})
    elif kind == "verbose_json":
        content = {"task": task, "language": next((name for name, _ in found), ""), "duration": seconds, "text": text}
        await exchange.answer(content | {"segments": [_listed(i, one) for i, one in enumerate(segments)]})
    else:
        plain = {"text": lambda _: f"{text}\n", "srt": as_srt, "vtt": as_vtt}[kind](segments)
        await exchange.answer(plain.encode(), kind="text/plain; charset=utf-8")


def _listed(number: int, one: Segment) -> dict[str, Any]:
    numbers = {"id": number, "seek": int(one.start * 100), "start": round(one.start, 3), "end": round(one.end, 3)}
    sums = {} if one.log_prob is None else {"avg_logprob": one.log_prob}
    return numbers | {"text": one.text, "tokens": one.token_ids, "temperature": one.temperature, **sums}


async def _events(segments: AsyncIterator[tuple[str, Segment]]) -> AsyncIterator[dict[str, Any]]:
    found: list[Segment] = []
    async for _, segment in segments:
        before = whole_text(found)
        found.append(segment)
        yield {"type": "transcript.text.delta", "delta": whole_text(found)[len(before) :]}
    yield {"type": "transcript.text.done", "text": whole_text(found)}
