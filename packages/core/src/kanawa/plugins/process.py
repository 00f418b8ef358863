"""The process-wide plugin host: the one piece of module-level mutable state in core."""

from __future__ import annotations

from kanawa.plugins.manager import PluginHost

_current: PluginHost | None = None


def host() -> PluginHost:
    """Returns the process's plugin host. Nothing is discovered until it is asked something."""
    global _current
    if _current is None:
        _current = PluginHost()
    return _current


def set_host(new: PluginHost | None) -> PluginHost | None:
    """Replaces the process's host (None: a fresh one on next use) and returns the old one."""
    global _current
    old, _current = _current, new
    return old
