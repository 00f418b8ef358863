"""Compiles the text of a module with LLVM: to functions in memory, or to another processor's instructions."""

import threading
from typing import Any

from llvmlite import binding

#: Functions of the C library that a module may call.
LIBRARY = ("malloc", "free", "sched_yield")
_INITIALISING = threading.Lock()


def host() -> tuple[str, str]:
    """Returns LLVM's name of this processor and its feature string, which also lists the features it lacks."""
    return str(binding.get_host_cpu_name()), str(binding.get_host_cpu_features().flatten())


def machine(triple: str | None = None) -> Any:
    """Returns LLVM's target machine of this processor, or of the plainest processor of another triple.

    Raises RuntimeError for a triple that this LLVM doesn't support.
    """
    processor, features = host() if triple is None else ("", "")
    with _INITIALISING:
        if triple is None:
            binding.initialize_native_target()
            binding.initialize_native_asmprinter()
        else:
            binding.initialize_all_targets()
            binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    return target.create_target_machine(cpu=processor, features=features, opt=3)


def optimised(text: str, target: Any) -> Any:
    """Returns the verified and optimised module of a text; raises RuntimeError with LLVM's message if it is invalid."""
    module = binding.parse_assembly(text)
    # Passes need sizes and alignments before code generation sets them.
    module.data_layout, module.triple = str(target.target_data), target.triple
    module.verify()
    passes = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return module


def address(text: str, name: str) -> int:
    """Compiles a text for this processor and returns a function's address.

    The code is never freed: XLA's threads may run it while the interpreter exits.
    """
    target = machine()
    engine = binding.create_mcjit_compiler(optimised(text, target), target)
    engine.finalize_object()
    place = engine.get_function_address(name)
    engine.detach()
    return int(place)
