"""Embeddings of pictures on the device, by content: the tower runs once for a picture while its place lasts."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
import numpy as np
from jaxtyping import Array, Int, UInt8
from kanawa.arrays.tree import flatten_paths, unflatten_paths
from kanawa.contracts import CausalLM, PictureTokens, Program, ReadsPictures
from kanawa.errors import UsageError
from kanawa.module import param_specs

from kanawa_runtime.serve.engine.config import EngineConfig
from kanawa_runtime.serve.engine.picture import Picture, PlacedPicture, placed_pictures
from kanawa_runtime.serve.engine.programs import Programs, abstract_of
from kanawa_runtime.serve.engine.request import Request, RequestError
from kanawa_runtime.serve.engine.scheduler import Chunk
from kanawa_runtime.serve.engine.sequence import Sequence
from kanawa_runtime.serve.engine.shapes import grouped

#: Pictures that one program encodes.
_ROWS = (1, 4)
#: Places beyond this many for each sequence would hold what nobody asks for again.
_MOST_PLACES_EACH = 8


class PictureTower:
    """The programs of a model's tower, and the pool [places, tokens, features] that prefill reads.

    A picture is encoded just before the first chunk with tokens of it, so that a step's token budget bounds what the
    tower does in it. The one that was unused longest gives its place to another.
    """

    def __init__(
        self, programs: Programs, config: EngineConfig, kind: type[ReadsPictures], tokens: PictureTokens
    ) -> None:
        self._programs, self._config, self._kind, self.tokens = programs, config, kind, tokens
        self._model_config = programs.paged.model.config
        self._encode: Callable[..., Any] = kn.functional(programs.paged.model, "encode_pictures")
        self.streams = streams_of(kind, self._model_config)
        programs.steps.read_pictures(tokens.token_id, self.streams)
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self.count = 0
        self.pool: Any = None
        self._abstract: jax.ShapeDtypeStruct | None = None
        self.queries = self.hits = self.encoded = 0

    def reads(self, model: CausalLM) -> list[str]:
        """Returns the paths of the parameters that pictures pass through, as they are trained."""
        specs = flatten_paths(param_specs(model))
        params = unflatten_paths({path: spec.abstract() for path, spec in specs.items()})
        pixels = jax.ShapeDtypeStruct((1, *self.tokens.shape), jnp.uint8)
        encode: Any = kn.functional(model, "encode_pictures")
        traced: Any = jax.make_jaxpr(encode)(params, {}, pixels).jaxpr
        used = {id(variable) for equation in traced.eqns for variable in equation.invars}
        # In the order of JAX's leaves.
        paths: list[str] = jax.tree.leaves(unflatten_paths({path: path for path in specs}))
        return [path for path, variable in zip(paths, traced.invars, strict=False) if id(variable) in used]

    def stats(self) -> Mapping[str, float]:
        """Returns how many pictures prompts had that were computed, those that were in the pool, and those encoded."""
        return {
            "picture_cache_queries": self.queries,
            "picture_cache_hits": self.hits,
            "pictures_encoded": self.encoded,
        }

    def placed(self, request: Request) -> tuple[PlacedPicture, ...]:
        """Returns where a request's pictures are; raises RequestError where prompt and pictures don't fit."""
        for number, picture in enumerate(request.pictures):
            if picture.pixels.shape != self.tokens.shape:
                shapes = f"{list(picture.pixels.shape)}, and the model reads {list(self.tokens.shape)}"
                message = f"picture {number + 1} has the shape {shapes} (height, width, channels); resize it"
                raise RequestError(message, "pictures")
        try:
            return placed_pictures(request.prompt_ids, request.pictures, self.tokens.token_id, self.tokens.num_tokens)
        except UsageError as error:
            raise RequestError(str(error), "pictures") from error

    def place(self, sequence: Sequence) -> None:
        """Sets where a sequence's pictures are, and the coordinates of its tokens."""
        sequence.pictures = self.placed(sequence.request)
        if self.streams:
            ids = np.asarray(sequence.request.prompt_ids, np.int32)
            coordinates = self._kind.picture_coordinates(self._model_config, ids)
            assert coordinates is not None
            sequence.coordinates = coordinates
            sequence.shift = int(coordinates.max()) + 1 - len(ids)

    # --- in a step ----------------------------------------------------------------------------------------------

    def encode(self, chunks: SequenceOf[Chunk]) -> None:
        """Encodes the pictures of a step's chunks that have no place, together."""
        begun = [placed for chunk in chunks for placed in _within(chunk) if placed.start >= chunk.start]
        self.queries += len(begun)
        self.hits += sum(placed.picture.digest in self._places for placed in begun)
        self._take_places(_pictures(chunks)[: self.count])

    def see(self, chunks: SequenceOf[Chunk], ids: np.ndarray) -> tuple[Any, ...]:
        """Writes where each picture token's features are into a program's ids; returns its further arguments.

        A token whose features are row i of the flattened pool has the id -1 - i.
        """
        self._take_places(_pictures(chunks))
        for row, chunk in zip(ids, chunks, strict=False):
            for placed in _within(chunk):
                first = max(placed.start, chunk.start)
                last = min(placed.stop, chunk.start + chunk.count)
                begin = self._places[placed.picture.digest] * self.tokens.num_tokens - placed.start
                row[first - chunk.start : last - chunk.start] = -1 - np.arange(begin + first, begin + last)
        if not self.streams:
            return (self.pool,)
        coordinates = np.zeros((*ids.shape, self.streams), np.int32)
        for row, chunk in zip(coordinates, chunks, strict=False):
            row[: chunk.count] = _coordinates(chunk.sequence, chunk.start, chunk.start + chunk.count)
        return (self.pool, coordinates)

    def evict_all(self) -> None:
        """Drops what is in the pool: other weights would have made other features."""
        self._places.clear()
        self._free = list(range(self.count - 1, -1, -1))

    def _take_places(self, wanted: SequenceOf[Picture]) -> None:
        missing = [picture for picture in wanted if picture.digest not in self._places]
        for picture in wanted:
            if picture.digest in self._places:
                self._places.move_to_end(picture.digest)
        for picture in missing:
            # Those that are wanted too were moved to the end, and there are places for all of them.
            place = self._free.pop() if self._free else self._places.popitem(last=False)[1]
            self._places[picture.digest] = place
        for few, rows in grouped(missing, _ROWS):
            pixels = np.zeros((rows, *self.tokens.shape), np.uint8)
            # Rows without a picture are written past the end, where they are dropped.
            at = np.full(rows, self.count, np.int32)
            for row, picture in enumerate(few):
                pixels[row], at[row] = picture.pixels, self._places[picture.digest]
            programs = self._programs
            program = programs.compiled["pictures", rows]
            self.pool = program(programs.params, programs.model_state, self.pool, pixels, at)
            self.encoded += len(few)

    # --- programs -----------------------------------------------------------------------------------------------

    def wanted(self) -> Mapping[tuple[Any, ...], Program]:
        """Returns the programs to compile, after making an empty pool."""
        programs, abstract = self._programs, self._programs.abstract
        shape = self._shape(programs.params, programs.model_state)
        with programs.environment.active():
            self.pool = jnp.zeros(shape.shape, shape.dtype, device=programs.whole)
        self.evict_all()
        model = tuple(abstract_of(tree) for tree in (programs.params, programs.model_state, self.pool))
        return {
            ("pictures", rows): Program(
                f"pictures {rows}",
                self._encoded,
                (*model, abstract((rows, *self.tokens.shape), jnp.uint8), abstract((rows,))),
                (2,),
                programs.whole,
                programs.prefill_environment,
            )
            for rows in _ROWS
        }

    def further(self, params: Any, model_state: Any, rows: int, tokens: int) -> tuple[Any, ...]:
        """Returns the abstract arguments that programs of chunks take besides a text model's."""
        shape = self._shape(params, model_state)
        pool = self._programs.abstract(shape.shape, shape.dtype)
        coordinates = self._programs.abstract((rows, tokens, self.streams))
        return (pool, coordinates) if self.streams else (pool,)

    def _shape(self, params: Any, model_state: Any) -> jax.ShapeDtypeStruct:
        if self._abstract is None:
            pixels = jax.ShapeDtypeStruct((1, *self.tokens.shape), jnp.uint8)
            with self._programs.prefill_environment.active():
                made, _ = jax.eval_shape(self._encode, params, model_state, pixels)
            self.count = self._num_places(made.size * made.dtype.itemsize)
            self._abstract = jax.ShapeDtypeStruct((self.count, *made.shape[1:]), made.dtype)
        return self._abstract

    def _num_places(self, each_bytes: int) -> int:
        """Returns how many pictures the config's bytes hold, and at least those of one program."""
        shapes, cfg = self._programs.shapes, self._config
        a_row = -(-shapes.prefill_sizes[-1] // self.tokens.num_tokens) + 1
        least = shapes.prefill_rows[-1] * a_row
        return max(least, min(cfg.picture_cache_bytes // each_bytes, _MOST_PLACES_EACH * cfg.max_sequences))

    def _encoded(
        self, params: Any, model_state: Any, pool: Array, pixels: UInt8[Array, "N H W C"], at: Int[Array, " N"]
    ) -> Array:
        features, _ = self._encode(params, model_state, pixels)
        return pool.at[at].set(features.astype(pool.dtype), mode="drop")


def with_whole_pictures(config: EngineConfig, model: CausalLM) -> EngineConfig:
    """Returns the config with chunks that hold a picture, for a model whose pictures' tokens see each other both ways.

    Chunks are then computed one after the other: what a picture sees of itself is in the same row.
    """
    tokens = type(model).picture_tokens(model.config) if isinstance(model, ReadsPictures) else None
    if tokens is None or not tokens.both_ways:
        return config
    size = config.page_size
    least = -(-tokens.num_tokens // size) * size
    sizes = None if config.prefill_sizes is None else (*config.prefill_sizes, least)
    return config.clone().set(
        prefill_rows=(1,),
        prefill_sizes=sizes,
        prefill_tokens=max(config.prefill_tokens, least),
        max_batched_tokens=max(config.max_batched_tokens, config.max_sequences + least),
    )


def picture_tower(programs: Programs, model: CausalLM, config: EngineConfig) -> PictureTower | None:
    """Returns the tower of a model that reads pictures, None for others."""
    if not isinstance(model, ReadsPictures):
        return None
    kind = type(model)
    tokens = kind.picture_tokens(model.config)
    return PictureTower(programs, config, kind, tokens)


def check_pictures(request: Request, tower: PictureTower | None) -> None:
    """Raises RequestError where a request's pictures don't fit its prompt, or the model reads none."""
    if tower is not None:
        tower.placed(request)
    elif request.pictures:
        message = f"the request has {len(request.pictures)} pictures, and this model reads none; leave them out"
        raise RequestError(message, "pictures")


def streams_of(kind: type[ReadsPictures], config: Any) -> int:
    """Returns how many coordinates a model's tokens have; 0 where they have none besides their place."""
    coordinates = kind.picture_coordinates(config, np.zeros(1, np.int32))
    return 0 if coordinates is None else int(coordinates.shape[-1])


def _pictures(chunks: SequenceOf[Chunk]) -> list[Picture]:
    """Returns the pictures with tokens in chunks, each content once."""
    found = [placed.picture for chunk in chunks for placed in _within(chunk)]
    return list({picture.digest: picture for picture in found}.values())


def _within(chunk: Chunk) -> list[PlacedPicture]:
    stop = chunk.start + chunk.count
    return [placed for placed in chunk.sequence.pictures if placed.start < stop and placed.stop > chunk.start]


def _coordinates(sequence: Sequence, start: int, stop: int) -> np.ndarray:
    """Returns the coordinates of some of a sequence's tokens; after the prompt all streams are the same."""
    known = sequence.coordinates
    assert known is not None
    after = np.arange(max(start, len(known)), stop, dtype=np.int32)[:, None] + np.int32(sequence.shift)
    return np.concatenate([known[start:stop], np.broadcast_to(after, (len(after), known.shape[1]))])
