"""Imported before JAX is used: this process gets eight CPU devices, and XLA threads enough for them.

By default XLA starts a thread for each device. All of them may wait in collectives for one that has no thread left to
compute with; XLA ends such a process after 40 seconds.
"""

import os

from xla_options import xla_flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = xla_flags(8)
_IS_SET = "NPROC" in os.environ
os.environ.setdefault("NPROC", "32")

import jax  # noqa: E402
import quick_process  # noqa: E402, F401

jax.devices()
# Processes that a test starts have threads as a user's.
if not _IS_SET:
    del os.environ["NPROC"]
