"""The pictures of a conversation: where they are, whether a server takes them, and what the model sees of them."""

from collections.abc import Sequence

from kanawa_runtime.data.images.decode import PictureError
from kanawa_runtime.serve.engine.picture import Picture
from kanawa_runtime.serve.http.errors import invalid
from kanawa_runtime.serve.http.picture_process import Wanted
from kanawa_runtime.serve.http.protocol import Message, PicturePart
from kanawa_runtime.serve.http.service import Service

#: Others are the server's operator's, or the model's own.
_ROLES = ("user", "tool")


def picture_parts(service: Service, messages: Sequence[Message]) -> list[tuple[str, PicturePart]]:
    """Returns the parts that are pictures, in order, and what errors call each.

    Raises the 400 of pictures for a model that reads none, of too many, and of those in others' messages.
    """
    found = []
    for number, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if not isinstance(part, PicturePart):
                continue
            at = part.place or f"messages[{number}].content[{place}].image_url"
            if service.model.pictures is None:
                raise invalid(at=at, why="it is a picture, and this model reads texts alone; leave it out")
            if message.role not in _ROLES:
                why = f"a picture belongs to a message of the user or of a tool, and this is one of the {message.role}"
                raise invalid(at=at, why=why)
            found.append((at, part))
    most = service.config.max_pictures
    if len(found) > most:
        why = f"it is picture {most + 1} of {len(found)}, and a request may have {most} (max_pictures)"
        raise invalid(at=found[most][0], why=why)
    return found


def pictures_of(service: Service, messages: Sequence[Message]) -> tuple[Picture, ...]:
    """Returns the pictures as the model sees them; raises the 400 of one that can't be read. Waits for a process."""
    parts, marks, config = picture_parts(service, messages), service.model.pictures, service.config
    if marks is None or not parts:
        return ()
    wanted = Wanted(marks.tokens.shape, config.max_picture_bytes, config.max_picture_pixels, config.picture_hosts)
    made = []
    for at, part in parts:
        try:
            made.append(Picture.of(service.pictures.pixels(part.image_url.url, wanted)))
        except PictureError as error:
            raise invalid(at=at, why=str(error)) from error
    return tuple(made)
