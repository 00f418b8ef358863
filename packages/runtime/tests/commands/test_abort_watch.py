"""An abort from C++ becomes an ordinary end."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, signal, sys, threading, time

def blocked():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(60)

from kanawa_runtime.commands.abort_watch import aborting_threads, watch_for_aborts
watch_for_aborts(lambda: (print("seen", len(aborting_threads()), flush=True), os._exit(42)))
threading.Thread(target=blocked, daemon=True).start()
time.sleep(3)
assert not aborting_threads()
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
time.sleep(60)
"""

INHERITED = """
import os, signal, time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT})
from kanawa_runtime.commands.abort_watch import watch_for_aborts
watch_for_aborts(lambda: os._exit(42))
time.sleep(3)
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are looked for in /proc")


def test_the_process_ends_with_its_own_code_and_words():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (42, "seen 1\n"), done.stderr


def test_a_signal_that_was_blocked_by_whoever_started_the_process_is_no_abort():
    assert subprocess.run([sys.executable, "-c", INHERITED], check=False, timeout=300).returncode == 0
