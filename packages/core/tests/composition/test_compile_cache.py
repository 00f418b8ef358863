"""Programs compiled past JAX's persistent cache, and into one of their own, in a process that already uses it."""

import jax
from kanawa.composition.compile_cache import cache_in, without_cache

X = jax.ShapeDtypeStruct((3,), "float32")


def compiled(number):
    return jax.jit(lambda x: x * number + 1).lower(X).compile()


def kept(folder):
    return len(list(folder.glob("*-cache")))


def test_inside_nothing_is_read_from_the_cache_or_kept_in_it_though_the_process_uses_one(tmp_path):
    dump = tmp_path / "dump"
    with cache_in(str(tmp_path / "cache")):
        compiled(2)
        assert kept(tmp_path / "cache") == 1
        with without_cache():
            jax.jit(lambda x: x * 2 + 1).lower(X).compile({"xla_dump_to": str(dump)})
            compiled(3)
        assert list(dump.glob("*after_optimizations.txt")), "an executable from the cache leaves no dump"
        assert kept(tmp_path / "cache") == 1
        compiled(4)
        assert kept(tmp_path / "cache") == 2


def test_settings_are_those_of_before(tmp_path):
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [jax.config.values[name] for name in names]
    with cache_in(str(tmp_path)), without_cache():
        assert [jax.config.values[name] for name in names] == [False, str(tmp_path), 0.0]
    assert [jax.config.values[name] for name in names] == before
