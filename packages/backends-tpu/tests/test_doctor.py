"""Preflight checks of TPUs against pretended installations."""

from kanawa_backends_tpu.doctor import check_version

JAX = ["numpy>=2.0", 'libtpu==0.0.48.*; extra == "tpu"', 'requests; extra == "tpu"']


def test_a_libtpu_that_jax_does_not_ask_for_is_told():
    (told,) = check_version("0.0.48.1", JAX)
    assert (told.level, told.message) == ("ok", "0.0.48.1")
    (told,) = check_version("0.0.52", JAX)
    assert told.level == "warning"
    assert told.message == "libtpu 0.0.52, and the installed jax asks for ==0.0.48.*"
    assert told.fix == 'pip install "libtpu==0.0.48.*"' and "may refuse" in told.meaning


def test_without_either_there_is_nothing_to_compare():
    assert check_version(None, JAX) == []
    (told,) = check_version("0.0.52", ["numpy"])
    assert told.level == "ok"
