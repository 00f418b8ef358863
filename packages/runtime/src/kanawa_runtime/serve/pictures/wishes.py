"""What pictures are asked for with: labels by name or number, or texts, as the model reads them."""

import dataclasses

from kanawa.contracts import Made
from kanawa.errors import UsageError, did_you_mean

from kanawa_runtime.data.single_rows import whole_ids
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer

_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Wishes:
    """Turns labels and texts into what a model takes; `tokenizer` is that of its texts."""

    made: Made
    tokenizer: Tokenizer | None = None

    @property
    def is_text(self) -> bool:
        """Whether the model reads texts."""
        return self.made.prompt_length is not None

    def check(self, what: str) -> None:
        """Raises UsageError for a model that makes no pictures by itself."""
        if self.made.is_latent:
            shape = " x ".join(map(str, self.made.shape))
            message = (
                f"{what} makes latents of {shape}, which are no pixels; set model.autoencoder to what decodes them"
            )
            raise UsageError(message)
        if self.made.reads_states:
            message = (
                f"{what} makes pictures of what an encoder made of texts, and has none; train one that has, with "
                "--modify text-encoder:folder=FOLDER"
            )
            raise UsageError(message)
        if self.is_text and self.tokenizer is None:
            message = f"{what} makes pictures of texts, and there is no tokenizer beside it"
            raise UsageError(message)

    def of(self, asked: int | str) -> int | tuple[int, ...]:
        """Returns a label's id, or a text's ids; raises UsageError for an unknown label, or a text that is too long."""
        if not self.is_text:
            return label_id(self.made, asked)
        assert self.tokenizer is not None and self.made.prompt_length is not None
        ids, is_cut = whole_ids(self.tokenizer, str(asked), self.made.prompt_length)
        if is_cut:
            whole, _ = whole_ids(self.tokenizer, str(asked), 10**9)
            message = f"the text has {len(whole)} tokens, and the model reads {self.made.prompt_length}; shorten it"
            raise UsageError(message)
        return tuple(map(int, ids))

    def name(self, asked: int | str) -> str:
        """Returns what to call a picture of it."""
        if self.is_text or not self.made.label_names:
            return str(asked)
        return self.made.label_names[label_id(self.made, asked)]


def label_id(made: Made, label: int | str) -> int:
    """Returns the id of a label, a name or a number; raises UsageError for one that the model doesn't know."""
    if not made.num_labels:
        message = f"the model makes pictures without labels, and {label!r} was asked for"
        raise UsageError(message)
    names = made.label_names
    if str(label) in names:
        return names.index(str(label))
    number = int(label) if str(label).isdecimal() else -1
    if 0 <= number < made.num_labels:
        return number
    known = f"0 to {made.num_labels - 1}"
    if names:
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        known = f"{shown}{did_you_mean(str(label), names)}, or their numbers, {known}"
    message = f"label {label!r} is none of the model's {made.num_labels}: {known}"
    raise UsageError(message)
