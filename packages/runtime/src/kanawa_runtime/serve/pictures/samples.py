"""Pictures of a model in training: of the first labels or held-out texts, of the same noise each time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kanawa.contracts import DataSource, Environment, Made, MakesPictures

from kanawa_runtime.runs.media import Medium, png
from kanawa_runtime.serve.examples.sampler import MediaSampler, held_out_rows, reduced
from kanawa_runtime.serve.pictures.maker import GUIDANCE, Asked, PictureMaker

_PICTURES = 10


class Subject(NamedTuple):
    """What a sample is of, as the model takes it, and what it is called."""

    wish: int | tuple[int, ...] | None
    name: str


def subjects_of(made: Made, source: DataSource) -> list[Subject]:
    """Returns the first labels, or the first texts that are held out; [] of a model that can't be sampled so."""
    if made.is_latent or made.reads_states:
        return []
    if made.prompt_length is None:
        count = min(made.num_labels, _PICTURES)
        names = [*made.label_names[:count], *map(str, range(len(made.label_names), count))]
        labelled = [Subject(label, name) for label, name in enumerate(names)]
        return labelled or [Subject(None, str(number)) for number in range(_PICTURES)]
    rows = source.held_out() or source
    subjects: dict[str, Subject] = {}
    for row in held_out_rows(source, 4 * _PICTURES):
        shown = rows.shown(row)
        if shown is None:
            continue
        text = shown.text
        ids = row["input_ids"][row["segment_ids"] > 0]
        subjects.setdefault(text, Subject(tuple(map(int, ids)), text))
    return [*subjects.values()][:_PICTURES]


class PictureSampler(MediaSampler):
    """Makes pictures of each subject, of the same noise each time."""

    about = "Of the same noise each time."

    def __init__(self, model: MakesPictures, environment: Environment, subjects: Sequence[Subject]) -> None:
        super().__init__()
        self._model, self._environment, self._subjects = model, environment, subjects
        self._maker: PictureMaker | None = None

    def media(self, params: Any, state: Any) -> list[Medium]:
        """Returns the pictures."""
        if self._maker is None:
            self._maker = PictureMaker(self._model, params, state, self._environment)
        else:
            self._maker.load(params, state)
        asked = [Asked(one.wish, seed) for seed, one in enumerate(self._subjects)]
        pictures = self._maker.make(asked, GUIDANCE)
        self._maker.unload()
        return [png(reduced(picture), one.name) for picture, one in zip(pictures, self._subjects, strict=True)]

    def forget(self) -> None:
        """Frees the program and the parameters."""
        self._maker = None
