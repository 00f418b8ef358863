"""An abort from C++ becomes an ordinary end."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, sys, threading, time
from kanawa_runtime.commands.abort_watch import is_aborting, watch_for_aborts
watch_for_aborts(lambda: (print("seen", is_aborting(), flush=True), os._exit(42)))
assert not is_aborting()
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are looked for in /proc")
def test_the_process_ends_with_its_own_code_and_words():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (42, "seen True\n"), done.stderr
