"""From a module's text to functions in memory, or to another processor's instructions; all that calls LLVM."""

import threading
from typing import Any

from llvmlite import binding

#: What a module's text may call besides itself.
LIBRARY = ("malloc", "free", "sched_yield")
_INITIALISING = threading.Lock()


def host() -> tuple[str, str]:
    """Returns the name of the processor at hand and the features that it has and that it hasn't, as LLVM calls them."""
    return str(binding.get_host_cpu_name()), str(binding.get_host_cpu_features().flatten())


def machine(triple: str | None = None) -> Any:
    """Returns what LLVM compiles for: the processor at hand, or the plainest one of another kind.

    Raises RuntimeError for one that this LLVM doesn't know.
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
    """Returns the module of a text, checked and optimised for a machine; RuntimeError says what is wrong with it."""
    module = binding.parse_assembly(text)
    # Passes ask for sizes and alignments before the compiler says what they are.
    module.data_layout, module.triple = str(target.target_data), target.triple
    module.verify()
    passes = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    return module


def address(text: str, name: str) -> int:
    """Compiles a text for the processor at hand and returns a function's address.

    It stays in memory for good: XLA's threads may be in it while the interpreter ends.
    """
    target = machine()
    engine = binding.create_mcjit_compiler(optimised(text, target), target)
    engine.finalize_object()
    place = engine.get_function_address(name)
    engine.detach()
    return int(place)
