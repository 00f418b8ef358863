"""The two pluggy markers: `hookspec` declares a hook, `hookimpl` implements one."""

import pluggy

PROJECT = "kanawa"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
