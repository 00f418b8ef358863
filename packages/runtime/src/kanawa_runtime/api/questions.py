"""Pictures that a model is asked about: files, bytes or arrays, and the ids of the questions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kanawa.contracts import PictureTokens, ReadsPictures
from kanawa.errors import UsageError
from kanawa.guarded_read import UnreadableFileError, guarded_bytes

from kanawa_runtime.data.chats.picture_marks import PICTURE, PictureMarks
from kanawa_runtime.data.chats.template import check_jinja, template_of, turns
from kanawa_runtime.data.chats.template_process import TemplateError
from kanawa_runtime.data.images.decode import PictureError, pillow
from kanawa_runtime.data.images.model_pixels import fitted_pixels, pixels_of
from kanawa_runtime.data.tokenizers.tokenizer import Tokenizer
from kanawa_runtime.runs.open_run import OpenedRun
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.growing_text import prompt_ids

_MOST_BYTES, _MOST_PIXELS = 2**30, 2**28


def pictures_of(opened: OpenedRun, prompts: Sequence[Any], pictures: Sequence[Sequence[Any]]) -> list[list[Picture]]:
    """Returns the pictures of each prompt; raises UsageError for a model that reads none, and what isn't a picture."""
    if len(prompts) != len(pictures) or any(isinstance(each, str | bytes | Path) for each in pictures):
        message = f"there are {len(prompts)} prompts; expected a list of pictures for each, found {len(pictures)}"
        raise UsageError(message)
    tokens = _tokens(opened)
    return [[picture_of(one, tokens.shape) for one in each] for each in pictures]


def picture_of(picture: Any, shape: tuple[int, ...]) -> Picture:
    """Returns a file, bytes, or an array uint8 [height, width, channels] in a model's size; raises UsageError."""
    named = str(picture) if isinstance(picture, str | Path) else f"a picture of {type(picture).__name__}"
    try:
        if isinstance(picture, np.ndarray):
            return Picture.of(fitted_pixels(pillow().fromarray(Picture.of(picture).pixels), shape))
        data = picture if isinstance(picture, bytes) else guarded_bytes(Path(picture), most=_MOST_BYTES)
        return Picture.of(pixels_of(data, shape, _MOST_PIXELS))
    except (PictureError, OSError, UnreadableFileError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"{named}: {reason}"
        raise UsageError(message) from error


def asking_ids(
    opened: OpenedRun, tokenizer: Tokenizer | None, prompts: Sequence[str], pictures: Sequence[Sequence[Picture]]
) -> list[list[int]]:
    """Returns the ids of texts after their pictures: messages in the model's template, where it has one of its own."""
    assert tokenizer is not None
    check_jinja()
    template = template_of(tokenizer.folder_files())
    marks = PictureMarks(_tokens(opened), template, tokenizer)
    made = []
    for text, own in zip(prompts, pictures, strict=True):
        content = [*(dict(PICTURE) for _ in own), {"type": "text", "text": text}]
        messages = marks.for_template([{"role": "user", "content": content}])
        try:
            asked = template.render(turns(messages, add_generation_prompt=True))
        except TemplateError as error:
            message = f"the model's chat template doesn't take the prompt {text[:40]!r}: {error}"
            raise UsageError(message) from error
        begin = () if template.own else tokenizer.prefix_ids
        ids = [*begin, *marks.encode(asked, tokenizer.encode).tolist()]
        marks.check_count(ids, len(own))
        made.append(ids if own else prompt_ids(tokenizer, text))
    return made


def _tokens(opened: OpenedRun) -> PictureTokens:
    model = opened.trainer.model
    if not isinstance(model, ReadsPictures):
        message = f"{opened.directory} holds a {type(model).__name__}, which reads no pictures; leave them out"
        raise UsageError(message)
    return type(model).picture_tokens(model.config)
