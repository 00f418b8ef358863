"""Libraries that only a chosen service needs: missing ones are named with the extra that brings them."""

import importlib.util

from kanawa.errors import UsageError


class MissingExtraError(UsageError):
    """A service's library isn't installed."""


def require(module: str, extra: str, service: str) -> None:
    """Raises MissingExtraError unless `module` can be imported; imports nothing."""
    if importlib.util.find_spec(module) is not None:
        return
    message = (
        f"service {service!r} needs {module}, which isn't installed; nothing was started. "
        f'Run: pip install "kanawa-runtime[{extra}]", or leave the service out'
    )
    raise MissingExtraError(message)
