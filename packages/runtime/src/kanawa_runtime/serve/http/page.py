"""The chat page: one HTML file that loads nothing from anywhere, and may talk to this server alone."""

import base64
import hashlib
import re
from importlib.resources import files

from kanawa_runtime.serve.http.exchange import Exchange


class Page:
    """Answers with the page, and with the policy that no other script or address is let in."""

    def __init__(self) -> None:
        self._html = files("kanawa_runtime.serve.http").joinpath("page.html").read_bytes()
        script, style = (_hashes(self._html, tag) for tag in (b"script", b"style"))
        self._policy = {
            "Content-Security-Policy": f"default-src 'none'; script-src {script}; style-src {style}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
        }

    async def __call__(self, exchange: Exchange) -> None:
        """Answers a request."""
        await exchange.answer(self._html, headers=self._policy, kind="text/html; charset=utf-8")


def _hashes(html: bytes, tag: bytes) -> str:
    contents = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
