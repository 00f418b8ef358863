"""Log-probabilities of many requests by one model: packed rows, logits only where something is scored."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from kanawa.arrays.shardings import array_sharding, replicated
from kanawa.contracts import CausalLM, Environment, Program, Sequences
from kanawa.module import functional

from kanawa_runtime.evaluate.encoding import Scored
from kanawa_runtime.evaluate.metrics import Likelihood
from kanawa_runtime.evaluate.score_plan import ScoreBatch, score_batches

#: Tokens read by a program at once, and logits it makes: 256 MiB of them.
TOKENS, LOGITS = 8192, 2**26


class LikelihoodScorer:
    """Scores requests with a causal model on the environment's mesh; a program is compiled for each shape of rows.

    Rows of a batch are a multiple of `multiple`, so that the mesh divides them. Every process of a gang calls alike.
    """

    def __init__(self, model: CausalLM, environment: Environment, *, multiple: int = 1) -> None:
        self._model, self._environment, self._multiple = model, environment, multiple
        self._compiled: dict[tuple[tuple[int, ...], ...], Any] = {}

    def batches(self, requests: Sequence[Scored]) -> list[ScoreBatch]:
        """Returns the rows of requests; they are the same for any parameters."""
        vocab = self._model.config.vocab_size
        return score_batches(requests, tokens=TOKENS, logits=LOGITS, vocab_size=vocab, multiple=self._multiple)

    def score(
        self,
        params: Any,
        state: Any,
        batches: Sequence[ScoreBatch],
        count: int,
        until: Callable[[], bool] = lambda: False,
    ) -> list[Likelihood] | None:
        """Returns the likelihood of each of `count` requests, nats summed in fp64; None where `until()` cut it short.

        A token is greedy where no other has a larger logit. Log-probabilities are fp32, over the whole vocabulary.
        """
        totals, greedy = np.zeros(count), np.ones(count, bool)
        with self._environment.active():
            for batch in batches:
                if until():
                    return None
                arrays = batch[:5]
                program = self._program(params, state, arrays)
                values = program(params, state, *map(self._placed, arrays))
                logprobs, is_largest = (np.asarray(value) for value in values)
                held = batch.requests >= 0
                np.add.at(totals, batch.requests[held], logprobs[held].astype(np.float64))
                np.logical_and.at(greedy, batch.requests[held], is_largest[held])
        return [Likelihood(float(total), bool(one)) for total, one in zip(totals, greedy, strict=True)]

    def _program(self, params: Any, state: Any, arrays: Sequence[np.ndarray]) -> Any:
        key = tuple(array.shape for array in arrays)
        if key not in self._compiled:
            abstract = jax.tree.map(_abstract, (params, state))
            rows = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._sharding(x.shape)) for x in arrays]
            mesh = self._environment.mesh
            whole = None if mesh is None else replicated(mesh)
            program = Program("score", self._scored, (*abstract, *rows), (), whole, self._environment)
            self._compiled[key] = program.lower().compile()
        return self._compiled[key]

    def _scored(
        self, params: Any, state: Any, ids: Any, positions: Any, segments: Any, places: Any, targets: Any
    ) -> tuple[jax.Array, jax.Array]:
        sequences = Sequences(positions=positions, segment_ids=segments)
        (logits, _), _ = functional(self._model, "decode")(params, state, ids, sequences, None, places)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        logprobs = chosen - jax.nn.logsumexp(logits, axis=-1)
        return logprobs, jnp.argmax(logits, axis=-1) == targets

    def _sharding(self, shape: tuple[int, ...]) -> Any:
        mesh = self._environment.mesh
        if mesh is None:
            return None
        return array_sharding(shape, ("batch", None), self._environment.plan.activation_rules, mesh, "rows of requests")

    def _placed(self, array: np.ndarray) -> Any:
        sharding = self._sharding(array.shape)
        if sharding is None:
            return array
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
