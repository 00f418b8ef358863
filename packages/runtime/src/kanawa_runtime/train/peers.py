"""Whether an error means that another process of the run was lost, which says nothing against this one.

The death of a peer arrives as what was running: a broken connection in a collective (Gloo, or a vendor's library), a
barrier or a key that never comes (the coordination service, orbax), in any wrapper. All of it is worth another try.
"""

import re
from collections.abc import Iterator

from kanawa.errors import KanawaError

from kanawa_runtime.exit_codes import LOST

#: These phrases are about peers, in any library's message.
_WORDS = re.compile(r"(?i)gloo|\b[a-z]?ccl|heartbeat|coordination service|\bbarrier\b|another task|distributed service")
#: And in an error of JAX these too: data that is read over a network has connections of its own. Other codes, such as
#: INTERNAL, may be a compiler's bug.
_OF_JAX = re.compile(
    r"\b(UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED)\b"
    r"|(?i:connection (closed|reset|refused|aborted)|closed by peer|broken pipe|socket|timed out)"
)
#: How XLA's errors begin; what reads an array back makes a ValueError of one that the program met.
_STATUS = re.compile(r"[A-Z_]{4,}: ")
_MOST_CHARACTERS = 160


class PeerLostError(KanawaError):
    """Another process of the run ended or can't be reached: start all of them again."""

    exit_code = LOST


def lost_peer(error: BaseException) -> str | None:
    """Returns what of an error, or of what caused it, says that a peer was lost, in a line; None where nothing does."""
    from jax.errors import JaxRuntimeError

    for cause in _causes(error):
        if isinstance(cause, PeerLostError):
            return str(cause)
        text = " ".join(str(cause).split())
        is_of_runtime = isinstance(cause, ValueError) and _STATUS.match(text)
        may_tell = isinstance(cause, RuntimeError | TimeoutError) or is_of_runtime
        if may_tell and (_WORDS.search(text) or (isinstance(cause, JaxRuntimeError) and _OF_JAX.search(text))):
            return text[:_MOST_CHARACTERS]
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and what it came from, each once."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__
