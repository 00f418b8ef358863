"""The two pluggy markers: `hookspec` declares a hook, `hookimpl` implements one."""

import pluggy

PROJECT = "sashimono"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
