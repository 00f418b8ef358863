"""What `serve` and `chat` need beyond the package's own requirements, asked for before anything slow begins."""

import importlib.util

from kanawa.errors import UsageError

_MODULES = ("pydantic", "starlette", "uvicorn", "httptools", "jinja2", "prometheus_client", "llguidance")


def require_serving(verb: str) -> None:
    """Raises UsageError naming what is missing and the extra that brings it; imports nothing."""
    missing = [module for module in _MODULES if importlib.util.find_spec(module) is None]
    if missing:
        message = f'kanawa {verb} needs {", ".join(missing)}, not installed here: pip install "kanawa[serve]"'
        raise UsageError(message)
