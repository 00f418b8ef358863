"""Imports of the libraries that the `data` extra brings; each is imported when a file needs it."""

import importlib
from typing import Any

from kanawa_runtime.data.errors import CorpusError


def needed(module: str, what: str) -> Any:
    """Returns the module; raises CorpusError, which names the extra, where it isn't installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Of a library that is there but lacks one of its own: that name is the one to install.
        missing = error.name or module
        message = f'{what} needs the library {missing}: pip install "kanawa[data]"'
        raise CorpusError(message) from error
