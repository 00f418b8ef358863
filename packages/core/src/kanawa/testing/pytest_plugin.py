"""pytest plugin of the conformance kit. It declares the marker `nightly`, which the kit's long checks have, and changes
nothing else unless the project's pytest config says so:

    [tool.pytest.ini_options]
    kanawa_strict = true

Then tests run on eight forced CPU devices, and implicit rank or dtype promotion is an error: it hides transposed
shapes and lost precision. `JAX_PLATFORMS`, if set, wins.
"""

import os

import pytest

DEVICES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the option."""
    parser.addini("kanawa_strict", "strict JAX on eight CPU devices", type="bool", default=False)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declares the kit's marker, and makes JAX strict before any test module imports it, where asked to."""
    config.addinivalue_line(
        "markers", "nightly: the long form of a conformance check; leave it out with -m 'not nightly'"
    )
    if not config.getini("kanawa_strict"):
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
    import jax

    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
