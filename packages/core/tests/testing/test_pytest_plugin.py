"""The kit's pytest plugin: strict where a project asks for it, invisible where it doesn't."""

import os
import subprocess
import sys

import pytest

STRICT_TEST = """
import jax, jax.numpy as jnp, pytest

def test_strict():
    assert jax.device_count() == 8
    with pytest.raises(Exception, match="rank_promotion"):
        jnp.ones((2, 3)) + jnp.ones(3)
"""
PLAIN_TEST = """
import sys

def test_untouched():
    assert "jax" not in sys.modules
    assert "kanawa.config" not in sys.modules
"""


@pytest.mark.parametrize(("option", "text"), [("kanawa_strict = true", STRICT_TEST), ("", PLAIN_TEST)])
def test_only_on_request(tmp_path, option, text):
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{option}\n")
    (tmp_path / "test_it.py").write_text(text)
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:jaxtyping", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout
