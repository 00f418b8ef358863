"""Distillation: a student model learns from tokens and from a frozen teacher's distributions over them."""

from typing import Any

import jax
import jax.numpy as jnp
import kanawa as kn
from jaxtyping import Array, Float, Int
from kanawa.contracts import Batch, CausalLM, Sequences

from kanawa_layers.losses.distillation import kl_divergence


class Distilled(CausalLM):
    """The student's own loss plus `coefficient` times KL(teacher || student), each a mean over weighted tokens.

    Hinton et al. 2015, arXiv:1503.02531. In everything but training it is the student. The teacher is frozen: no
    gradient, no optimizer state, no decay. Both models need a child `stack` and share a vocabulary; the logits of
    both are stored, [batch, length, vocab] in fp32, so microbatches bound the memory.
    """

    student: CausalLM
    teacher: CausalLM

    class Config(CausalLM.Config):
        student: CausalLM.Config = kn.REQUIRED
        teacher: CausalLM.Config = kn.REQUIRED
        coefficient: kn.Strength = 1.0
        temperature: kn.Positive = 1.0
        foreign: kn.foreign.Names = kn.foreign.Names(children={"student": "student", "teacher": "teacher"})

        def check(self) -> list[str]:
            """Returns what is wrong with the vocabularies and the temperature."""
            sizes = {name: getattr(self, name).vocab_size for name in ("student", "teacher")}
            problems = [
                f"{name}.vocab_size is {size}, but the distilled model's is {self.vocab_size}: they must be the same"
                for name, size in sizes.items()
                if size != self.vocab_size
            ]
            return problems

    def setup(self) -> None:
        """Declares the student and the frozen teacher."""
        self.add_child("student", self.config.student)
        self.add_child("teacher", self.config.teacher, frozen=True)

    def forward(self, batch: Batch) -> None:
        """Adds both losses; outside of training, the student's alone."""
        sequences = Sequences(positions=batch.positions, segment_ids=batch.segment_ids)
        x = _last_stream(self.student, batch.input_ids, sequences)
        self.student.head_and_loss(x, batch)
        # An evaluation measures the student alone.
        if not self.train:
            return
        # The student's head was already called for its own loss; the outputs of a second call need another name.
        with kn.call_name("distillation"):
            student = self.student.logits(x)
        teacher = self.teacher.logits(_last_stream(self.teacher, batch.input_ids, sequences))
        divergence = kl_divergence(student, teacher, temperature=self.config.temperature)
        weights = batch.loss_weights
        self.add_loss("distillation", jnp.sum(divergence * weights), jnp.sum(weights), self.config.coefficient)

    def embed(self, input_ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
        """Returns the student's first stream."""
        return self.student.embed(input_ids, sequences)

    def head_and_loss(self, x: Float[Array, "B T E"], batch: Batch) -> None:
        """Adds the student's own loss."""
        self.student.head_and_loss(x, batch)

    def logits(self, x: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """Returns the student's logits."""
        return self.student.logits(x)

    def predict(self, input_ids: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Returns the student's logits of whole rows."""
        return self.student.logits(_last_stream(self.student, input_ids, Sequences()))

    def decode(
        self,
        input_ids: Int[Array, "B T"],
        sequences: Sequences,
        caches: Any,
        last: Int[Array, "*rows"] | None = None,
    ) -> tuple[Float[Array, "B some V"], Any]:
        """Returns the student's logits and caches."""
        return self.student.decode(input_ids, sequences, caches, last)

    @kn.nowrap
    def cache_spec(self, rows: int, length: int, dtype: str) -> Any:
        """Returns the student's cache layout."""
        return self.student.cache_spec(rows, length, dtype)

    @kn.nowrap
    def unstacked(self, params: Any) -> Any:
        """Returns parameters with one tree a layer in the student."""
        return {**params, "student": self.student.unstacked(params["student"])}


def _last_stream(model: CausalLM, input_ids: Int[Array, "B T"], sequences: Sequences) -> Float[Array, "B T E"]:
    stack: Any = model.children["stack"]
    x: jax.Array = stack(model.embed(input_ids, sequences), sequences)[0]
    return x
