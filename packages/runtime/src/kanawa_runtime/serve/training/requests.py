"""The protocol's JSON requests, as far as this server takes them."""

from typing import Annotated, Any, ClassVar

from kanawa.errors import did_you_mean
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kanawa_runtime.serve.http.validation import Name, wrong_field

_MOST_TOKENS, _MOST_SAMPLES, _MOST_STOPS, _MOST_TOP = 1_000_000, 1024, 64, 20


class Asked(BaseModel):
    """An object of the protocol. Fields of newer clients are taken where they ask for nothing: null, false, 0."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())
    #: What says something about the client, and nothing of what is asked for.
    SAID: ClassVar[frozenset[str]] = frozenset(("type", "user_metadata", "tags", "sdk_version", "ttl_seconds"))

    @model_validator(mode="before")
    @classmethod
    def _unknown_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            error, text = "not_an_object", "Input should be an object"
            raise PydanticCustomError(error, text)
        for name, content in value.items():
            if content and name not in cls.model_fields and name not in cls.SAID:
                why = f"this server doesn't offer it{did_you_mean(name, cls.model_fields)}"
                raise wrong_field(at=name[:60], why=why)
        return {name: content for name, content in value.items() if content is not None}


class SessionRequest(Asked):
    """A client begins."""

    SAID = Asked.SAID | {"project_id", "display_name"}


class HeartbeatRequest(Asked):
    """A client is still there."""

    session_id: Name


class AdapterRequest(Asked):
    """What of the model an adapter changes."""

    rank: int = Field(ge=1)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerRequest(Asked):
    """Which optimizer a model has."""

    SAID = frozenset(("version",))
    type: str = "adamw"


class CreateModelRequest(Asked):
    """A new model of a session."""

    session_id: Name
    model_seq_id: int
    base_model: str
    lora_config: AdapterRequest | None = None
    optimizer_config: OptimizerRequest = OptimizerRequest()


class ModelRequest(Asked):
    """About a model."""

    model_id: Name


class AdamRequest(Asked):
    """The numbers of an update."""

    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-12
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    grad_clip_norm: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class OptimStepRequest(ModelRequest):
    """An update of a model."""

    seq_id: int
    adam_params: AdamRequest = AdamRequest()


class SaveRequest(ModelRequest):
    """A checkpoint of a model, under a name."""

    seq_id: int
    path: Name | None = None
    overwrite: bool = False


class SaveForSamplerRequest(ModelRequest):
    """A model's adapter to sample from: saved under a name, else for a session alone."""

    SAID = Asked.SAID | {"kind"}
    seq_id: int
    path: Name | None = None
    sampling_session_seq_id: int | None = None


class LoadRequest(Asked):
    """A checkpoint for a model that is there, or for a new one of a session."""

    path: str
    optimizer: bool = False
    model_id: Name | None = None
    seq_id: int | None = None
    session_id: Name | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    optimizer_config: OptimizerRequest = OptimizerRequest()


class SamplingSessionRequest(Asked):
    """Samples are wanted of the base model, or of what is saved at an address."""

    session_id: Name
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class Chunk(Asked):
    """A piece of a prompt."""

    type: str = "encoded_text"
    tokens: list[int] = Field(max_length=_MOST_TOKENS)


class Prompt(Asked):
    """A prompt in pieces."""

    chunks: list[Chunk] = Field(max_length=4096)


class SamplingRequest(Asked):
    """How samples are drawn."""

    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(1.0, ge=0, le=100)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)


class SampleRequest(Asked):
    """Samples of a sampling session."""

    SAID = Asked.SAID | {"base_model", "model_path"}
    sampling_session_id: Name
    seq_id: int
    prompt: Prompt
    sampling_params: SamplingRequest
    num_samples: int = Field(1, ge=1, le=_MOST_SAMPLES)
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = Field(0, ge=0, le=_MOST_TOP)
    topk_sample_logprobs: int = Field(0, ge=0, le=_MOST_TOP)
    prompt_logprobs_last_n: int | None = Field(None, ge=1)


class RetrieveRequest(Asked):
    """The answer to an earlier request."""

    SAID = Asked.SAID | {"allow_metadata_only", "model_id"}
    request_id: str = Field(max_length=600)


class CancelRequest(Asked):
    """Nobody waits for a request any more."""

    request_id: str = Field(max_length=600)
