"""Pictures and sounds of events on the page: they are in the page itself, as all else is."""

import base64
from collections.abc import Sequence
from html import escape

from kanawa_runtime.runs.media import Medium


def gallery(media: Sequence[Medium]) -> str:
    """Returns the pictures side by side and the sounds with their controls, each with its words below."""
    return f'<div class="media">{"".join(map(_figure, media))}</div>' if media else ""


def _figure(medium: Medium) -> str:
    source = f"data:{medium.type};base64,{base64.b64encode(medium.data).decode()}"
    text = escape(medium.text)
    if medium.type.startswith("audio/"):
        shown = f'<audio controls preload="none" src="{source}"></audio>'
    else:
        shown = f'<img src="{source}" alt="{text}">'
    return f"<figure>{shown}<figcaption>{text}</figcaption></figure>"
