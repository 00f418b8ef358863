"""The protocol's binary messages: rows to train on, and what came out; the rest of it is JSON.

The messages are described by their fields' numbers and types, from which protobuf's own library makes their classes.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

KIND = "application/x-protobuf"
_PACKAGE = "kanawa_training"
_TYPES = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
_FLOAT32 = 1
#: Numbers of dtypes on the wire; bfloat16, number 4, is for answers alone.
_DTYPES: Mapping[int, np.dtype[Any]] = {_FLOAT32: np.dtype(np.float32), 2: np.dtype(np.int64), 3: np.dtype(np.int32)}
_STOP_REASONS = {"stop": 0, "length": 1}
#: Fields by message: name, number, type; "*" marks a repeated one. A map is a repeated pair of key and value.
_MESSAGES: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "SparseCsr": (("values", 1, "bytes"),),
    "Tensor": (("dense", 1, "bytes"), ("sparse_csr", 2, "SparseCsr"), ("dtype", 3, "int32"), ("shape", 4, "*int64")),
    "Text": (("tokens", 1, "bytes"),),
    "Other": (),
    "Chunk": (("encoded_text", 1, "Text"), ("image", 2, "Other"), ("dmel", 3, "Other")),
    "NamedTensor": (("key", 1, "string"), ("value", 2, "Tensor")),
    "Datum": (("model_input", 1, "*Chunk"), ("loss_fn_inputs", 2, "*NamedTensor")),
    "NamedNumber": (("key", 1, "string"), ("value", 2, "double")),
    "OptionValue": (("number", 1, "double"), ("text", 2, "string")),
    "NamedOption": (("key", 1, "string"), ("value", 2, "OptionValue")),
    "ForwardBackwardRequest": (
        *(("model_id", 1, "string"), ("seq_id", 2, "int32"), ("data", 3, "*Datum"), ("loss_fn", 4, "string")),
        *(("loss_fn_config", 5, "*NamedNumber"), ("forward_only", 6, "bool"), ("loss_fn_config_v2", 7, "*NamedOption")),
    ),
    "BatchedTensor": (
        *(("data", 1, "bytes"), ("offsets", 2, "bytes"), ("dtype", 3, "int32"), ("trailing_shape", 4, "*int64")),
    ),
    "NamedBatch": (("key", 1, "string"), ("value", 2, "BatchedTensor")),
    "ArrayRecord": (("type_tag", 1, "string"), ("fields", 2, "*NamedBatch"), ("num_datums", 3, "int64")),
    "ForwardBackwardOutput": (
        *(("loss_fn_output_type", 1, "string"), ("loss_fn_outputs", 2, "*ArrayRecord"), ("metrics", 3, "*NamedNumber")),
    ),
    "TopkLogprobs": (("token_ids", 1, "bytes"), ("logprobs", 2, "bytes"), ("k", 3, "uint32"), ("length", 4, "uint32")),
    "SampledSequence": (
        *(("stop_reason", 1, "int32"), ("tokens", 2, "bytes"), ("logprobs", 3, "bytes")),
        ("topk_sampled_logprobs", 4, "TopkLogprobs"),
    ),
    "SampleResponse": (
        *(("sequences", 1, "*SampledSequence"), ("prompt_logprobs", 2, "bytes")),
        *(("topk_prompt_logprobs", 3, "TopkLogprobs"), ("prompt_cache_hit_tokens", 4, "int32")),
    ),
}


class WireError(ValueError):
    """A message isn't one, or holds what isn't taken; `at` names the field, `model_id` and `seq_id` the request."""

    model_id = ""
    seq_id = 0

    def __init__(self, at: str, why: str) -> None:
        super().__init__(f"{at}: {why}" if at else why)
        self.at = at


@dataclasses.dataclass(frozen=True)
class Row:
    """One row to train on: int32 [length] token ids, and arrays of the same length by name."""

    input_ids: np.ndarray
    inputs: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ForwardBackward:
    """A request for the loss of rows, and its gradient unless `forward_only`."""

    model_id: str
    seq_id: int
    rows: tuple[Row, ...]
    loss: str
    options: Mapping[str, float]
    forward_only: bool


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A drawn sequence: ids and log-probabilities of equal length; `top` holds (ids, log-probabilities) [length, k]."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    stop_reason: str
    top: tuple[np.ndarray, np.ndarray] | None = None


def forward_backward_of(content: bytes) -> ForwardBackward:
    """Returns the request that bytes hold; raises WireError."""
    from google.protobuf.message import DecodeError

    message = _class("ForwardBackwardRequest")()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise WireError(at="", why=f"the body isn't a forward_backward message: {error}") from error
    try:
        options, rows = _options(message), tuple(_row(datum, f"data[{n}]") for n, datum in enumerate(message.data))
    except WireError as error:
        error.model_id, error.seq_id = message.model_id, message.seq_id
        raise
    return ForwardBackward(message.model_id, message.seq_id, rows, message.loss_fn, options, bool(message.forward_only))


def _options(message: Any) -> dict[str, float]:
    options = {option.key: option.value for option in message.loss_fn_config}
    for option in message.loss_fn_config_v2:
        if option.value.text:
            raise WireError(at=f"loss_fn_config.{option.key}", why=f"expected a number, not {option.value.text[:60]!r}")
        options[option.key] = option.value.number
    return options


def _row(datum: Any, at: str) -> Row:
    pieces = []
    for number, chunk in enumerate(datum.model_input):
        if not chunk.HasField("encoded_text"):
            raise WireError(at=f"{at}.model_input[{number}]", why="expected tokens: this model takes text alone")
        pieces.append(_array(chunk.encoded_text.tokens, np.dtype(np.int32), f"{at}.model_input[{number}]"))
    ids = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
    inputs = {}
    for named in datum.loss_fn_inputs:
        place, tensor = f"{at}.loss_fn_inputs.{named.key}", named.value
        if tensor.HasField("sparse_csr") or len(tensor.shape) > 1:
            raise WireError(place, "expected one number a position: several targets a position aren't offered")
        if tensor.dtype not in _DTYPES:
            raise WireError(place, f"dtype {tensor.dtype} is unknown, expected float32 or int64")
        inputs[named.key] = _array(tensor.dense, _DTYPES[tensor.dtype], place)
    return Row(ids, inputs)


def _array(content: bytes, dtype: np.dtype[Any], at: str) -> np.ndarray:
    if len(content) % dtype.itemsize:
        raise WireError(at, f"{len(content)} bytes are no {dtype} numbers")
    return np.frombuffer(content, dtype)


def forward_backward_bytes(outputs: Mapping[str, Sequence[np.ndarray]], metrics: Mapping[str, float]) -> bytes:
    """Returns the answer to a forward_backward: by name, a float32 array for each row; and metrics."""
    message = _class("ForwardBackwardOutput")()
    message.loss_fn_output_type = "ArrayRecord"
    record = message.loss_fn_outputs.add()
    record.type_tag = "ArrayRecord"
    for name, arrays in outputs.items():
        record.num_datums = len(arrays)
        field = record.fields.add()
        field.key = name
        whole = [np.ascontiguousarray(array, np.float32) for array in arrays]
        field.value.data = b"".join(array.tobytes() for array in whole)
        field.value.offsets = np.cumsum([0, *(array.nbytes for array in whole)]).astype(np.int64).tobytes()
        field.value.dtype = _FLOAT32
    for name, number in metrics.items():
        metric = message.metrics.add()
        metric.key, metric.value = name, number
    return bytes(message.SerializeToString())


def sample_bytes(
    sequences: Sequence[Sampled],
    prompt_logprobs: Sequence[float] | None,
    top: tuple[np.ndarray, np.ndarray] | None,
    cached_tokens: int,
) -> bytes:
    """Returns the answer to a request for samples; a prompt's logprob that isn't known is NaN."""
    message = _class("SampleResponse")()
    message.prompt_cache_hit_tokens = cached_tokens
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray(prompt_logprobs, np.float32).tobytes()
    if top is not None:
        _write_top(message.topk_prompt_logprobs, *top)
    for one in sequences:
        sequence = message.sequences.add()
        sequence.stop_reason = _STOP_REASONS[one.stop_reason]
        sequence.tokens = np.asarray(one.token_ids, np.int32).tobytes()
        sequence.logprobs = np.asarray(one.logprobs, np.float32).tobytes()
        if one.top is not None:
            _write_top(sequence.topk_sampled_logprobs, *one.top)
    return bytes(message.SerializeToString())


def _write_top(message: Any, ids: np.ndarray, logprobs: np.ndarray) -> None:
    message.token_ids, message.logprobs = ids.astype(np.int32).tobytes(), logprobs.astype(np.float32).tobytes()
    message.length, message.k = ids.shape


@functools.lru_cache(maxsize=1)
def _classes() -> Mapping[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for called, number, kind in fields:
            field = described.field.add(name=called, number=number, label=3 if kind.startswith("*") else 1)
            kind = kind.removeprefix("*")
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = 11, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _class(name: str) -> Any:
    return _classes()[name]
