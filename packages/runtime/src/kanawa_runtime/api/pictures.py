"""Pictures of an opened run's model."""

from collections.abc import Sequence

from kanawa.contracts import Made, MakesPictures, Picture
from kanawa.errors import UsageError

from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.pictures.maker import Asked, PictureMaker, label_id, with_sampler

#: How far pictures go towards their labels where nothing is said.
GUIDANCE = 2.0


def pictures_of(
    opened: OpenedRun,
    labels: Sequence[int | str] | None,
    count: int,
    seed: int,
    steps: int | None,
    guidance: float,
    sampler: str | None,
) -> list[Picture]:
    """Returns `count` pictures of each label (None: of all).

    Picture i is of the noise of seed + i. Raises UsageError for a model that makes none, unknown labels and samplers.
    """
    model = opened.trainer.model
    if not isinstance(model, MakesPictures):
        message = f"{opened.directory}: {type(model).__qualname__} makes no pictures; models that do are MakesPictures"
        raise UsageError(message)
    if count < 1:
        message = f"--count {count}: expected 1 or more pictures of each label"
        raise UsageError(message)
    made = type(model).made_by(model.config)
    if made.is_latent:
        shape = " x ".join(map(str, made.shape))
        message = (
            f"{opened.directory} makes latents of {shape}, which are no pixels; set model.autoencoder to what decodes "
            "them"
        )
        raise UsageError(message)
    if made.prompt_length is not None:
        message = f"{opened.directory} makes pictures of texts, and its encoders of text aren't part of the run"
        raise UsageError(message)
    if labels is None:
        wanted: list[int | None] = [*range(made.num_labels)] or [None]
    else:
        wanted = [label_id(made, label) for label in labels]
    asked = [Asked(label, 0) for label in wanted for _ in range(count)]
    asked = [Asked(one.label, seed + i) for i, one in enumerate(asked)]
    cfg = with_sampler(model.config, sampler, steps)
    built = model if cfg is model.config else cfg.freeze().build()
    maker = PictureMaker(built, opened.params, opened.state, opened.environment)
    pixels = maker.make(asked, guidance)
    return [Picture(array, _name(made, one.label), one.seed) for array, one in zip(pixels, asked, strict=True)]


def _name(made: Made, label: int | None) -> str | None:
    if label is None:
        return None
    return made.label_names[label] if made.label_names else str(label)
