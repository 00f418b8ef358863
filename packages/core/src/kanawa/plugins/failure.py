"""Why a plugin or component is broken."""

from __future__ import annotations

import traceback
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """Why a plugin is broken: one line, and the traceback if there is one."""

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Returns the failure that a caught exception stands for."""
        first_line = (str(error).strip().splitlines() or [""])[0]
        text = "".join(traceback.format_exception(error))
        return cls(f"{type(error).__name__}: {first_line}", text)
