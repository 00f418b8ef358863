"""Names for the content of full pages: a chain of digests, so that equal digests mean equal tokens from the start."""

import hashlib
from collections.abc import Sequence

import numpy as np


def root(salt: str, adapter: str | None) -> bytes:
    """Returns the digest before the first page: other salts and adapters never share one."""
    named = "" if adapter is None else adapter
    # A cryptographic digest: whoever could make two prompts collide would read another's pages.
    # A salt comes from JSON, which may hold half of a surrogate pair: strict UTF-8 has none.
    text = f"{len(salt)}:{salt}{adapter is not None}{named}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def extend(digest: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns the digest of a page with these tokens after what `digest` stands for."""
    return hashlib.sha256(digest + np.asarray(token_ids, "<i4").tobytes()).digest()


def chain(digest: bytes, token_ids: Sequence[int], page_size: int) -> list[bytes]:
    """Returns the digest of each full page of the tokens."""
    ids = np.asarray(token_ids, "<i4")
    digests = []
    for start in range(0, len(ids) - page_size + 1, page_size):
        digest = hashlib.sha256(digest + ids[start : start + page_size].tobytes()).digest()
        digests.append(digest)
    return digests
