"""What a command does to its process: memory and the compile cache before JAX starts, threads that delay its end."""

import os


def prepare_process(*, serves: bool = False) -> None:
    """Lets backends prepare the process, and turns on the persistent compilation cache; call it before JAX starts.

    `serves`: whether the process runs a serving engine.

    With the cache a restart loads compiled programs. `machine_key` names its folder, because compiled code isn't
    portable between machines. `JAX_COMPILATION_CACHE_DIR` wins.
    """
    from kanawa.local_path import cache_folder
    from kanawa.plugins import host

    from kanawa_runtime.compile_cache import check_entries, machine_key

    host().notify("kanawa_process_started", purpose="serve" if serves else "train")
    import jax

    check_entries()
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla" / machine_key()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def keep_what_is_loaded() -> None:
    """Takes all that there is now out of the garbage collector's sight.

    Looking through what JAX and its compilers have made takes 0.1 s, every few seconds, in which no thread of Python
    runs, so no request is answered.
    """
    import gc

    # Garbage would be retained for good.
    gc.collect()
    gc.freeze()


def leave_readers_behind(code: int) -> None:
    """Ends the process with `code` if threads would keep it from ending by itself.

    A thread that waits for a slow disk can't be interrupted, and Python waits for it: a stop would take as long as the
    disk does. Call it only when all is saved and closed, and not in a gang, whose processes say goodbye to each other.
    """
    import sys
    import threading

    main = threading.main_thread()
    if all(thread.daemon or thread is main for thread in threading.enumerate()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
