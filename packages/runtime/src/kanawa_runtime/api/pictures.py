"""Pictures of an opened run's model."""

from collections.abc import Sequence

from kanawa.contracts import MakesPictures, Picture
from kanawa.errors import UsageError

from kanawa_runtime.data.tokenizers.load import tokenizer_of
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.pictures.maker import Asked, PictureMaker, with_sampler
from kanawa_runtime.serve.pictures.wishes import Wishes


def pictures_of(
    opened: OpenedRun,
    labels: Sequence[int | str] | str | None,
    count: int,
    seed: int,
    steps: int | None,
    guidance: float,
    sampler: str | None,
) -> list[Picture]:
    """Returns `count` pictures of each label (None: of all) or text.

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
    wishes = Wishes(made, None if made.prompt_length is None else tokenizer_of(opened))
    wishes.check(str(opened.directory))
    wanted: list[int | str | None] = [labels] if isinstance(labels, str) else [*(labels or [])]
    if labels is None:
        if wishes.is_text:
            message = f"{opened.directory} makes pictures of texts; say of which: kanawa generate RUN TEXT …"
            raise UsageError(message)
        wanted = [*range(made.num_labels)] or [None]
    each = [one for one in wanted for _ in range(count)]
    known = {one: None if one is None else wishes.of(one) for one in wanted}
    asked = [Asked(known[one], seed + i) for i, one in enumerate(each)]
    cfg = with_sampler(model.config, sampler, steps)
    built = model if cfg is model.config else cfg.freeze().build()
    maker = PictureMaker(built, opened.params, opened.state, opened.environment)
    pixels = maker.make(asked, guidance)
    names = {one: None if one is None else wishes.name(one) for one in wanted}
    return [Picture(array, names[one], made_of.seed) for array, one, made_of in zip(pixels, each, asked, strict=True)]
