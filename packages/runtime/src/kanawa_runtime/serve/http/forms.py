"""Bodies with files: multipart forms, as browsers and OpenAI's clients send them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from kanawa_runtime.serve.http.errors import ApiError, invalid
from kanawa_runtime.serve.http.exchange import Exchange

FORM = "multipart/form-data"
_PIECE = 256 * 1024
_MOST_FIELDS = 64


class Form(NamedTuple):
    """A form's fields by name, those whose name ends with [] as lists, and its files."""

    fields: dict[str, Any]
    files: dict[str, bytes]


async def read_form(exchange: Exchange, *, with_keys: bool) -> Form:
    """Returns the form that a body holds; raises ApiError 400, 403, 408, 413 or 415."""
    from starlette.datastructures import Headers
    from starlette.formparsers import MultiPartException, MultiPartParser

    if not with_keys and exchange.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        # A browser sends forms of a page to any other site unasked.
        message = "a page of another site sent this form; a server without keys takes none"
        raise ApiError(403, message, code="cross_site")
    content = await exchange.content(FORM)

    async def pieces() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(content), _PIECE):
            yield content[start : start + _PIECE]
            await asyncio.sleep(0)

    class InMemory(MultiPartParser):
        # Nothing that clients send is written to a disk.
        spool_max_size = len(content) + 1

    try:
        parser = InMemory(
            Headers(raw=exchange.scope["headers"]), pieces(), max_files=1, max_fields=_MOST_FIELDS, max_part_size=2**20
        )
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError) as error:
        text = f"the body is no form that can be read: {str(error)[:200] or type(error).__name__}"
        raise invalid(at="", why=text, code="invalid_form") from error
    try:
        return await _sorted(form)
    finally:
        await form.close()


async def _sorted(form: Any) -> Form:
    from starlette.datastructures import UploadFile

    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files[name] = await value.read()
        elif name.endswith("[]"):
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise invalid(at=name[:60], why="it comes more than once; send it once")
        else:
            fields[name] = value
    return Form(fields, files)
