"""The abstract modules that packages meet in. A config slot typed with a role takes any implementation of it.

Axis legend: B batch, T length, E embed, H heads, K kv_heads, D head_dim, S kv_length.
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Num

from kanawa.arrays.plan import current_plan
from kanawa.arrays.spec import ParamSpec
from kanawa.config import FROM_PARENT, REQUIRED, Count, Size
from kanawa.contracts.batch import Batch
from kanawa.contracts.data import DataSource
from kanawa.contracts.sequences import Sequences
from kanawa.module import Module, nowrap

#: The cache of one layer: arrays by name. Explicit argument and result of every method that uses it; donate it.
CacheState = dict[str, Any]


class Norm(Module):
    """Normalises the last axis."""

    class Config(Module.Config):
        input_dim: Size = FROM_PARENT

    @abc.abstractmethod
    def forward(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        """Returns an array of `x`'s shape and dtype; statistics are taken in fp32."""


class Positions(Module, abstract=True):
    """Positions of tokens. An implementation overrides the parts it acts on; the rest do nothing."""

    class Config(Module.Config):
        head_dim: Size = FROM_PARENT
        num_heads: Size = FROM_PARENT

    def rotate(
        self, q: Float[Array, "B T H D"], k: Float[Array, "B T K D"], positions: Int[Array, "B T *streams"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"]]:
        """Returns queries and keys rotated by their positions; [B, T, streams] for the few that take several."""
        del positions
        return q, k

    def bias(
        self, q_positions: Int[Array, "B T"], kv_positions: Int[Array, "B S"], num_heads: int
    ) -> Float[Array, "B H T S"] | None:
        """Returns what is added to attention logits, or None."""
        del q_positions, kv_positions, num_heads
        return None

    def slopes(self, num_heads: int) -> Float[Array, " H"] | None:
        """Returns constants s for which `bias` is -s |query position - key position|; None for any other bias.

        Kernels make that bias themselves, so that no array of all scores' size is stored.
        """
        del num_heads
        return None


class Cache(Module):
    """Keeps keys and values of past tokens for one attention layer; it has no parameters, only a layout.

    `value_dim` 0 says that values are part of the keys: there are none to keep. `reach` is how far back a query can
    see, its own position included; None: all the way.
    """

    #: Whether decoding with it gives what the whole forward gives, so that any other exact cache may take its place.
    exact: ClassVar[bool] = False

    class Config(Module.Config):
        num_kv_heads: Size = FROM_PARENT
        key_dim: Size = FROM_PARENT
        value_dim: Count = FROM_PARENT  # latent attention keeps keys alone
        reach: Size | None = FROM_PARENT

    @nowrap
    @abc.abstractmethod
    def spec(self, rows: int, length: int, dtype: str) -> dict[str, ParamSpec]:
        """Returns shape, dtype and axes of each array, for `rows` sequences of at most `length` tokens."""

    @abc.abstractmethod
    def extend(
        self,
        state: CacheState,
        k: Num[Array, "B T K D"],
        v: Num[Array, "B T K D"] | None,
        sequences: Sequences,
    ) -> "CacheView":
        """Returns the cache with the new tokens written after each row's `sequences.lengths`, and what to read.

        `v` is None where `value_dim` is 0. An empty cache is all zeros. Pages of a pool never hold a value that isn't
        finite: they change hands, and zero, the weight of what is hidden, times NaN is NaN. Such a token gets zeros as
        its value and a key of NaN, so that attention over it yields NaN and is detected.
        """


class CacheView(NamedTuple):
    """The new cache state, and the keys and values to attend over with their positions ([B, S]; None: 0, 1, 2, …).

    With a page table [B, R], k and v are pools [pages, page size, K, D], and the keys of a row are the tokens of its
    pages, of which the first `kv_lengths` [B] exist. `v` is None where the cache keeps no values of their own.
    """

    state: CacheState | None
    k: jax.Array
    v: jax.Array | None
    kv_positions: jax.Array | None = None
    kv_lengths: jax.Array | None = None
    page_table: jax.Array | None = None


class SequenceMixer(Module):
    """Mixes the tokens of a sequence: attention of any kind, or a recurrence."""

    class Config(Module.Config):
        input_dim: Size = FROM_PARENT

    @abc.abstractmethod
    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the mixed activations and the extended cache; without a cache, tokens see the same call's only."""

    @nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, ParamSpec]:
        """Returns the layout of this layer's cache; empty for a layer that keeps nothing."""
        del rows, length, dtype
        return {}


class FeedForward(Module):
    """Transforms each token on its own."""

    #: Whether what a token gets depends on the others of its batch, so that strangers can't be served together.
    depends_on_batch: ClassVar[bool] = False

    class Config(Module.Config):
        input_dim: Size = FROM_PARENT
        hidden_dim: Size = REQUIRED

    @abc.abstractmethod
    def forward(self, x: Float[Array, "B T E"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the transformed activations; `sequences.segment_ids == 0` marks padding."""


class TokenDispatcher(Module):
    """Brings token rows to the experts chosen for them and the results back; a slot of a mixture of experts."""

    class Config(Module.Config):
        num_experts: Size = FROM_PARENT

    #: Whether tokens may be left out for the sake of others in their batch: serving takes another dispatcher then.
    depends_on_batch: ClassVar[bool] = False
    #: Whether `dispatch` takes the id `num_experts` for "no expert": padding then costs nothing and fills no capacity.
    skips_padding: ClassVar[bool] = False

    @abc.abstractmethod
    def dispatch(
        self, x: Float[Array, "N E"], expert_ids: Int[Array, "N top_k"]
    ) -> tuple[Float[Array, "rows E"], Int[Array, " local_experts"], Any]:
        """Returns rows grouped by expert, the size of each group, and what `combine` needs."""

    @abc.abstractmethod
    def combine(self, rows: Float[Array, "rows E"], weights: Float[Array, "N top_k"], plan: Any) -> Float[Array, "N E"]:
        """Returns each token's weighted sum over its experts' rows."""

    @nowrap
    def through(
        self,
        experts: Module,
        x: Float[Array, "... E"],
        expert_ids: Int[Array, "... top_k"],
        weights: Float[Array, "... top_k"],
    ) -> Float[Array, "... E"]:
        """Returns each token's weighted sum over its experts; a mixture calls it, and `experts` is its child.

        `experts(rows, group_sizes)` sees rows grouped by expert. Where the plan spreads experts or tokens over shards,
        all of it happens on each shard's tokens, and `experts` sees the rows and the weights of that shard's experts.
        """
        spread = current_plan().distributed_over_shards("experts")
        if spread is not None:
            out: jax.Array = spread.through(self, experts, x, expert_ids, weights)
            return out
        return self.on_one_shard(experts, x, expert_ids, weights)

    @nowrap
    def on_one_shard(
        self,
        experts: Callable[..., Any],
        x: Float[Array, "... E"],
        expert_ids: Int[Array, "... top_k"],
        weights: Float[Array, "... top_k"],
    ) -> Float[Array, "... E"]:
        """Returns what `through` does, for tokens and experts that are all at hand."""
        # Rows of the batch mean nothing to experts: each token is on its own.
        flat = (array.reshape(-1, array.shape[-1]) for array in (x, expert_ids, weights))
        tokens, ids, shares = flat
        rows, sizes, plan = self.dispatch(tokens, ids)
        return self.combine(experts(rows, sizes), shares, plan).reshape(x.shape)


class Block(Module):
    """One layer of a stack."""

    class Config(Module.Config):
        input_dim: Size = FROM_PARENT

    @abc.abstractmethod
    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, cache: CacheState | None = None
    ) -> tuple[Float[Array, "B T E"], CacheState | None]:
        """Returns the residual stream after this layer, and its cache."""

    @nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> dict[str, Any]:
        """Returns the layout of this layer's cache."""
        del rows, length, dtype
        return {}


class Stack(Module):
    """A tower of blocks. Parameters keep one canonical path and `[layers, …]` leaves however it is run."""

    class Config(Module.Config):
        input_dim: Size = FROM_PARENT
        num_layers: Size = REQUIRED

    @abc.abstractmethod
    def forward(
        self, x: Float[Array, "B T E"], sequences: Sequences, caches: Any = None
    ) -> tuple[Float[Array, "B T E"], Any]:
        """Returns the last layer's residual stream and the caches of all layers."""

    @nowrap
    @abc.abstractmethod
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the layout of all layers' caches, in the structure `forward` takes."""

    @nowrap
    @abc.abstractmethod
    def unstacked(self, params: Any) -> Any:
        """Returns this module's parameters with one tree a layer, for decoding loops."""

    @nowrap
    def cuts(self) -> Mapping[str, int]:
        """Returns {own config field: parts} by which the stack cuts its rows; empty: none."""
        return {}

    @nowrap
    def layers_of_stages(self, stages: int) -> tuple[int, ...]:
        """Returns the layers of each of `stages` pipeline stages; () where it isn't spread over stages."""
        del stages
        return ()

    @nowrap
    def idle_share(self, stages: int) -> float:
        """Returns the part of its time in which one of `stages` pipeline stages has nothing to do."""
        del stages
        return 0.0


class RematPolicy(Module):
    """Says which activations the backward pass keeps; names are those layers `tag`."""

    @nowrap
    @abc.abstractmethod
    def policy(self) -> Any:
        """Returns False (keep all), True (keep layer inputs only), or a policy for jax.checkpoint."""


class Model(Module):
    """What a workload trains: `forward` runs a batch and adds the loss; which record a batch is, it says itself."""

    #: The record `forward` takes, of those in `contracts.batch` or one of the model's own.
    batch: ClassVar[type] = Batch

    @classmethod
    def batch_of(cls, cfg: Any) -> type:
        """Returns the record that a model with this config trains on: `batch`, unless a slot of it takes another."""
        del cfg
        return cls.batch

    @classmethod
    def row_shapes(cls, cfg: Any) -> Mapping[str, tuple[int, ...]]:
        """Returns the shapes of a row's arrays that a model with this config takes no others of; {} where any will do.

        Composition compares them with the data's `fields`; a source made of files for the model makes such rows.
        """
        del cfg
        return {}

    @classmethod
    def data_problem(cls, cfg: Any, source: DataSource) -> str:
        """Returns why a model with this config would learn nothing of a source's rows, whose record fits; "" if it can.

        Composition asks; what ids mean is an example, which shapes don't say.
        """
        del cfg, source
        return ""

    @nowrap
    def flops_per_row(self, shapes: Mapping[str, tuple[int, ...]]) -> float | None:
        """Returns forward matmul FLOPs of a row whose arrays have these shapes; None where that isn't known.

        Of rows of tokens: those of each token, which sees half of the row on average.
        """
        if "input_ids" not in shapes or "decoder_input_ids" in shapes:
            return None
        length = shapes["input_ids"][0]
        return self.flops_per_token((length + 1) / 2) * length

    @abc.abstractmethod
    def forward(self, batch: Any) -> None:
        """Adds the training loss and metrics of a batch to the outputs."""


class Labels(NamedTuple):
    """The names of a classifier's labels, and the tokens that it reads them at: a text's first or last, or all."""

    names: tuple[str, ...]
    place: Literal["first", "last", "tokens"]


class RepresentsText(Module, abstract=True):
    """A model of text whose stream says what a text is: embeddings are pooled from it, and labels read of it."""

    class Config(Module.Config):
        pass

    @abc.abstractmethod
    def states(
        self,
        input_ids: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        token_types: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T E"]:
        """Returns the last stream, normalised, before any head; segment 0 is padding. Tokens have type 0 by default."""

    @abc.abstractmethod
    def label_logits(self, states: Float[Array, "B T E"]) -> Float[Array, "B T L"]:
        """Returns fp32 logits of each token's labels; of a model with `labels_of` its config."""

    @classmethod
    @abc.abstractmethod
    def labels_of(cls, cfg: Any) -> Labels | None:
        """Returns the labels that a model with this config tells apart; None of one that has other heads."""


class Recognises(Model, abstract=True):
    """A model that says which of several labels or texts a picture shows; reports show what it says."""

    class Config(Model.Config):
        pass

    @classmethod
    def patch_side(cls, cfg: Any) -> int | None:
        """Returns the side in pixels of the patches of `ImageBatch.grids`; None where pictures are to have one size."""
        del cfg
        return None

    @abc.abstractmethod
    def recognise(self, batch: Any) -> Int[Array, " B"]:
        """Returns the place of each picture's likeliest label among those of the data, or text among the rows'."""


class PictureTokens(NamedTuple):
    """How a model reads a picture of `shape` (height, width, channels): as `num_tokens` tokens `token_id` in a row.

    A chat template writes `mark_id` for a picture, None: `token_id`. What a text has in its place is `written`: texts,
    and ids by the names that the tokenizer has for them; `token_id` among them stands for all tokens of the picture.
    () is the token alone. With `both_ways` the tokens of a picture see each other in both directions.
    """

    token_id: int
    num_tokens: int
    shape: tuple[int, ...]
    mark_id: int | None = None
    written: tuple[int | str, ...] = ()
    both_ways: bool = False


class ReadsPictures(Module, abstract=True):
    """A language model whose rows hold pictures: `Sequences.embeddings` are those that it makes of them."""

    class Config(Module.Config):
        pass

    @abc.abstractmethod
    def encode_pictures(self, images: Num[Array, "N H W C"]) -> Float[Array, "N P F"]:
        """Returns what `Sequences.embeddings` are of each picture's tokens; integers are pixels, 0 to 255.

        The features F are the model's own: its width, or more where later layers read some of them too.
        """

    @classmethod
    @abc.abstractmethod
    def picture_tokens(cls, cfg: Any) -> PictureTokens:
        """Returns how a model with this config reads a picture."""

    @classmethod
    def picture_coordinates(cls, cfg: Any, input_ids: np.ndarray) -> np.ndarray | None:
        """Returns `Sequences.coordinates` of a whole prompt [T] with its pictures' tokens, int32 [T, streams].

        Tokens after the prompt have the largest and one more in all streams, and so on. None where a model has none:
        its tokens are at 0, 1, 2, …
        """
        del cfg, input_ids
        return None


class MaskedLM(Model):
    """A language model that sees both sides: `input_ids` hide some tokens, `target_ids` are the tokens themselves.

    A batch weighs what is to be predicted with 1, which is what was hidden, and the rest with 0.
    """

    class Config(Model.Config):
        vocab_size: Size = REQUIRED
        input_dim: Size = REQUIRED


class CausalLM(Model):
    """A language model in three parts, so that a pipeline can place them on different stages."""

    class Config(Model.Config):
        vocab_size: Size = REQUIRED
        input_dim: Size = REQUIRED

    @classmethod
    def hidden_token(cls, cfg: Any) -> int | None:
        """Returns the id in place of tokens that a model with this config fills in; None: it continues texts.

        Such a model sees both sides: `decode` without caches predicts every token of its rows, at its own place.
        """
        del cfg
        return None

    @abc.abstractmethod
    def embed(self, input_ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the first residual stream."""

    @abc.abstractmethod
    def head_and_loss(self, x: Float[Array, "B T E"], batch: Batch) -> None:
        """Adds the training loss and its metrics for the last residual stream."""

    @abc.abstractmethod
    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns fp32 logits for the last residual stream."""

    @abc.abstractmethod
    def forward(self, batch: Batch) -> None:
        """Runs the three parts on a training batch; the loss is in the outputs."""

    @abc.abstractmethod
    def decode(
        self,
        input_ids: Int[Array, "B T"],
        sequences: Sequences,
        caches: Any,
        last: Int[Array, "*rows"] | None = None,
    ) -> tuple[Float[Array, "B some V"], Any]:
        """Returns fp32 logits and the extended caches; prefill is a long `T`, decoding T = 1.

        Logits of every token, or of the one token `last` of each row ([], or [B] where rows differ): a prompt
        needs no others, and those of a long one are larger than all else. Or of N tokens of each row, [B, N]. See
        `token_of_each_row`. Without caches, None, tokens see those of the same call and segment.
        """

    @nowrap
    @abc.abstractmethod
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the layout of the caches for `rows` sequences of at most `length` tokens."""

    @nowrap
    @abc.abstractmethod
    def unstacked(self, params: Any) -> Any:
        """Returns the parameters in the form that decodes fastest, one tree a layer."""
