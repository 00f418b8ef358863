"""Requests as OpenAI and vLLM define their JSON: pydantic models, over which `*_request` lay a server's own limits."""

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from kanawa_runtime.serve.engine.request import MIN_REPETITION_PENALTY, EngineLimits
from kanawa_runtime.serve.http.config import ServerConfig
from kanawa_runtime.serve.http.validation import Fields, Length, Name, TokenIds, by_type, wrong_field
from kanawa_runtime.serve.structured.grammars import MAX_CHOICES, GrammarKind

_MAX_BIASES = 1024
_MAX_STOP_CHARACTERS = 1000
_MAX_BAD_WORDS = 256
_MAX_TOP_LOGPROBS = 20
_MAX_INT32 = 2**31 - 1
#: Characters or tokens of a request to tokenize or detokenize.
MAX_TOKENIZED = 1_000_000
#: Parts of contents and calls of tools in all messages together: each is an object to check.
_MAX_PARTS = 4096
_PROMPTS = "a text, a list of token ids, or a list of either"

#: A kind of grammar, what it is compiled from, and the request's field that holds it.
Structure = tuple[GrammarKind, Any, str]
_StopString = Annotated[str, Length(_MAX_STOP_CHARACTERS)]
NewTokens = Annotated[int, Field(ge=1, le=_MAX_INT32)]


def _check_count(biases: Any) -> Any:
    # Pydantic looks at every value before it counts them.
    if isinstance(biases, dict) and len(biases) > _MAX_BIASES:
        error, text = "too_many_biases", f"Object should have at most {_MAX_BIASES} entries, not {len(biases)}"
        raise PydanticCustomError(error, text)
    return biases


def _check_parts(messages: Any) -> Any:
    listed = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    held = [m.get(name) for m in listed for name in ("content", "tool_calls")]
    if sum(len(parts) for parts in held if isinstance(parts, list)) > _MAX_PARTS:
        error, text = "too_many_parts", f"Messages should have at most {_MAX_PARTS} parts and calls together"
        raise PydanticCustomError(error, text)
    return messages


class JsonSchema(Fields):
    """A schema with its name."""

    name: Name | None = None
    description: str | None = None
    content: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """OpenAI's request for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Fields):
    """vLLM's request for an output of a certain form; `structured.Grammars` checks what it is compiled from."""

    json_schema: (
        Annotated[
            Annotated[dict[str, Any], Tag("(object)")] | Annotated[str, Tag("(text)")],
            by_type("a JSON schema, or the text of one"),
        ]
        | None
    ) = Field(None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = Field(None, description="a Lark or EBNF grammar")


class StreamOptions(Fields):
    """Where a stream reports the tokens used: in a last event, and in every event."""

    IGNORED = frozenset(("include_obfuscation",))
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SampledRequest(Fields):
    """How tokens are drawn, in every protocol; None leaves a value to the model's own defaults."""

    model: Name | None = Field(None, description="one of /v1/models; may be left out")
    temperature: Annotated[float, Field(ge=0, le=100, description="0 is greedy")] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MAX_INT32, description="0 or -1: all")] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = Field(None, description="choice i of n draws from seed + i")
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=100)] | None = None
    ignore_eos: bool = False
    truncate_prompt_tokens: (
        Annotated[int, Field(ge=-1, le=_MAX_INT32, description="keep the last so many; -1: what fits")] | None
    ) = None
    priority: Annotated[int, Field(ge=-(2**31), le=_MAX_INT32, description="lower goes first")] = 0
    cache_salt: Annotated[str, Length(256)] | None = Field(
        None, description="requests of another salt share no cached prefix"
    )
    stream: bool = Field(False, description="answer in server-sent events")

    def shared_fields(self) -> dict[str, Any]:
        """Returns the fields that every protocol has, as far as the request has them, and that of the template."""
        names = self.model_fields_set & {*SampledRequest.model_fields, *ConversationTemplate.model_fields}
        return {name: getattr(self, name) for name in names}


class ConversationTemplate(Fields):
    """What a chat template takes besides a conversation."""

    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the template")


class TextRequest(SampledRequest):
    """What completions and chats have in common."""

    IGNORED = frozenset(
        ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
        + ("request_id", "length_penalty", "spaces_between_special_tokens")
    )
    REFUSED = {"use_beam_search": "beam search isn't offered; n draws several choices"}

    n: int = 1
    min_tokens: Annotated[int, Field(ge=0, description="no stop before so many tokens")] = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    bad_words: Annotated[list[_StopString], Field(fail_fast=True, max_length=_MAX_BAD_WORDS)] = []
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100)]],
        BeforeValidator(_check_count),
        Field(description="by token id"),
    ] = {}
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise wrong_field(at="stream_options", why="it is for streams: set stream to true, or leave it out")
        self.structure()
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, each once."""
        return tuple(dict.fromkeys([self.stop] if isinstance(self.stop, str) else self.stop or ()))

    def structure(self) -> Structure | None:
        """Returns the form that the output must have, None for any; more than one is an error."""
        asked: list[Structure] = []
        wanted = self.response_format
        if wanted is not None and wanted.type == "json_object":
            asked.append(("json_object", None, "response_format"))
        elif wanted is not None and wanted.type == "json_schema":
            place, schema = "response_format.json_schema.schema", wanted.json_schema and wanted.json_schema.content
            if schema is None:
                raise wrong_field(at=place, why="it is missing, expected a JSON schema")
            asked.append(("json_schema", schema, place))
        if (outputs := self.structured_outputs) is not None:
            kinds: dict[str, tuple[GrammarKind, Any]]
            kinds = {"json": ("json_schema", outputs.json_schema), "regex": ("regex", outputs.regex)}
            kinds |= {"choice": ("choice", outputs.choice), "grammar": ("grammar", outputs.grammar)}
            asked += [
                (kind, spec, f"structured_outputs.{name}") for name, (kind, spec) in kinds.items() if spec is not None
            ]
            if outputs.json_object:
                asked.append(("json_object", None, "structured_outputs.json_object"))
        if len(asked) > 1:
            fields = " and ".join(field for _, _, field in asked)
            raise wrong_field(at=asked[1][2], why=f"{fields} can't be asked for at once; give one of them")
        return asked[0] if asked else None


class CompletionRequest(TextRequest):
    """The body of `/v1/completions`."""

    REFUSED = TextRequest.REFUSED | {
        "suffix": "no model here fills in the middle; give the text before it as prompt, and leave suffix out"
    }
    prompt: str | list[int] | list[str | list[int]]
    max_tokens: Annotated[int, Field(ge=0, le=_MAX_INT32)] | None = Field(
        None, description="16 unless given; 0 scores the prompt with echo"
    )
    echo: bool = Field(False, description="begin the answer with the prompt")
    logprobs: int | None = None
    best_of: int | None = Field(None, description="n, or left out")
    add_special_tokens: bool = Field(True, description="begin a text as the tokenizer does")

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of not in (None, self.n):
            raise wrong_field(at="best_of", why="choosing the best of several isn't offered; n gives them all")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, at least one."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return self.prompt if several else [self.prompt]  # type: ignore[return-value, list-item]


class TextPart(Fields):
    """A part of a message's content."""

    IGNORED = frozenset(("cache_control",))
    type: Literal["text"]
    text: str


class PictureUrl(Fields):
    """A data URL with a picture's bytes; `detail` changes nothing here, where each model has one size of pictures."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class PicturePart(Fields):
    """A picture in a message's content."""

    IGNORED = frozenset(("cache_control", "uuid"))
    type: Literal["image_url"]
    image_url: PictureUrl
    place: Name | None = Field(None, description="what errors call it, unless given: its path")


def _kind_of_part(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return {"text": "(text)", "image_url": "(picture)"}.get(kind) if isinstance(kind, str) else None


#: A part of a message's content.
Part = Annotated[
    Annotated[TextPart, Tag("(text)")] | Annotated[PicturePart, Tag("(picture)")],
    Discriminator(_kind_of_part, "kind", "Input should be a part of type text or image_url"),
]


class CalledFunction(Fields):
    """A function's name and the text of its arguments."""

    name: Name
    arguments: str = ""


class ToolCall(Fields):
    """A call that the model made earlier."""

    IGNORED = frozenset(("index",))
    id: Name | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Fields):
    """One message; ignored names are those of responses, which clients send back as they came."""

    IGNORED = frozenset(("refusal", "annotations", "audio", "function_call", "reasoning"))
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: (
        Annotated[
            Annotated[str, Tag("(text)")] | Annotated[list[Part], Field(fail_fast=True), Tag("(list)")],
            by_type("a text or a list of parts"),
        ]
        | None
    ) = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None


class NamedFunction(Fields):
    """A function by its name."""

    name: Annotated[str, Length(256)]


class Function(NamedFunction):
    """A function that the model may call."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool; all of them are functions."""

    type: Literal["function"]
    function: Function


class ToolChoice(Fields):
    """The one function that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class ConversationFields(ConversationTemplate):
    """What a chat template is rendered with."""

    tools: list[Tool] | None = None
    add_generation_prompt: bool = True


class ChatRequest(TextRequest, ConversationFields):
    """The body of `/v1/chat/completions`."""

    IGNORED = TextRequest.IGNORED | {"reasoning_effort", "verbosity", "prediction"}
    REFUSED = TextRequest.REFUSED | {
        "functions": "it has been replaced by tools and tool_choice; give those",
        "function_call": "it has been replaced by tools and tool_choice; give those",
        "audio": "the models here write text alone",
    }
    messages: list[Message]
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("(text)")] | Annotated[ToolChoice, Tag("(object)")],
            by_type("'none', 'auto', 'required', or an object that names a function"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool = True
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    max_completion_tokens: NewTokens | None = Field(None, description="what fits, unless given")
    max_tokens: NewTokens | None = Field(None, description="the older name of max_completion_tokens")
    logprobs: bool = False
    top_logprobs: int | None = None
    add_special_tokens: bool = Field(False, description="begin the text as the tokenizer does")

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong_field(at="top_logprobs", why="it needs logprobs, set to true")
        return self


class TokenizeRequest(ConversationFields):
    """The body of `/tokenize`."""

    model: Name | None = None
    #: Tokenizing takes the interpreter's time, and the engine needs some of it.
    prompt: Annotated[str, Length(MAX_TOKENIZED, shortest=0)] | None = Field(None, description="a text; or messages")
    messages: list[Message] | None = None
    add_special_tokens: bool | None = Field(None, description="for a prompt true, for messages false, unless given")
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise wrong_field(at="prompt", why="give a prompt or messages, one of them")
        return self


class DetokenizeRequest(Fields):
    """The body of `/detokenize`."""

    model: Name | None = None
    tokens: list[int]


class LoadRequest(Fields):
    """The body of `/load`."""

    step: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = Field(
        None, description="a checkpoint; the newest unless given"
    )


def completion_request(limits: EngineLimits, config: ServerConfig) -> type[CompletionRequest]:
    """Returns the body of `/v1/completions` with a server's limits."""
    ids: Any = Annotated[list[int], TokenIds(limits.vocab_size, limits.max_length, 1, is_prompt=True)]
    either: Any = Annotated[
        Annotated[str, Tag("(text)")] | Annotated[ids, Tag("(list)")], by_type("a text or a list of token ids")
    ]
    several: Any = Annotated[list[either], Field(fail_fast=True, min_length=1, max_length=config.max_prompts)]
    kinds: Any = Annotated[str, Tag("(text)")] | Annotated[ids, Tag("(ids)")] | Annotated[several, Tag("(several)")]
    told_apart = Discriminator(_kind_of_prompt, "kind", f"Input should be {_PROMPTS}")
    fields: dict[str, Any] = {
        "prompt": (Annotated[kinds, told_apart], Field(description=_PROMPTS)),
        "logprobs": (_up_to(limits.max_logprobs), None),
        "best_of": (_up_to(config.max_n, 1), None),
    }
    return create_model("CompletionRequest", __base__=CompletionRequest, **fields, **_text_limits(limits, config))


def chat_request(limits: EngineLimits, config: ServerConfig) -> type[ChatRequest]:
    """Returns the body of `/v1/chat/completions` with a server's limits."""
    fields: dict[str, Any] = {
        "messages": (_messages(config), Field(description="a list of messages")),
        "tools": (_tools(config), None),
        "top_logprobs": (_up_to(min(_MAX_TOP_LOGPROBS, limits.max_logprobs)), None),
    }
    return create_model("ChatRequest", __base__=ChatRequest, **fields, **_text_limits(limits, config))


def tokenize_request(config: ServerConfig) -> type[TokenizeRequest]:
    """Returns the body of `/tokenize` with a server's limits."""
    fields: dict[str, Any] = {"messages": (_messages(config) | None, None), "tools": (_tools(config), None)}
    return create_model("TokenizeRequest", __base__=TokenizeRequest, **fields)


def detokenize_request(limits: EngineLimits) -> type[DetokenizeRequest]:
    """Returns the body of `/detokenize` with a model's vocabulary."""
    fields: dict[str, Any] = {"tokens": (_token_ids(limits, MAX_TOKENIZED), ...)}
    return create_model("DetokenizeRequest", __base__=DetokenizeRequest, **fields)


def _text_limits(limits: EngineLimits, config: ServerConfig) -> dict[str, Any]:
    stops = Annotated[list[_StopString], Field(fail_fast=True, max_length=config.max_stop_strings)]
    stop = Annotated[
        Annotated[_StopString, Tag("(text)")] | Annotated[stops, Tag("(list)")], by_type("a text or a list of texts")
    ]
    return {
        "n": (Annotated[int, Field(ge=1, le=config.max_n, description="choices a prompt")], 1),
        "stop": (stop | None, Field(None, description="texts that end an answer")),
        "stop_token_ids": (_token_ids(limits, 64), []),
        "allowed_token_ids": (_token_ids(limits, limits.vocab_size, 1) | None, None),
        "prompt_logprobs": (_up_to(limits.max_logprobs), None),
    }


def _token_ids(limits: EngineLimits, longest: int, shortest: int = 0) -> Any:
    return Annotated[list[int], TokenIds(limits.vocab_size, longest, shortest)]


def _up_to(largest: int, smallest: int = 0) -> Any:
    return Annotated[int, Field(ge=smallest, le=largest)] | None


def _messages(config: ServerConfig) -> Any:
    bounds = Field(fail_fast=True, min_length=1, max_length=config.max_messages)
    return Annotated[list[Message], bounds, BeforeValidator(_check_parts)]


def _tools(config: ServerConfig) -> Any:
    return Annotated[list[Tool], Field(fail_fast=True, max_length=config.max_tools)] | None


def _kind_of_prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return "(text)"
    if isinstance(value, np.ndarray):
        return "(ids)"
    if not isinstance(value, list):
        return None
    return "(ids)" if value and isinstance(value[0], int) else "(several)"
