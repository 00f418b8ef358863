"""Sees that a process makes no progress, whatever keeps it, writes down the stacks of all and ends the gang."""

from kanawa_runtime.services.watchdog.watchdog import Watchdog as Watchdog
