"""Words of hardware that only `backends-*` packages may use, and the places that are left.

A word is looked for in everything a file says: code, docstrings, comments and messages. What needs it is a kernel of
a backend, an answer of a backend's hook, or a field of a `DeviceSpec`.
"""

import re

#: Devices and families of them, instruction sets, vendors, their libraries and what only one vendor's hardware has.
WORDS = (
    *(
        "tpus?",
        "gpus?",
        "[abh]\\d00",
        "v[4-7][epx]",
        "tpu7x",
        "trn[12]",
        "inf[12]",
        "trainium\\d?",
        "neuron(link|cores?)?",
    ),
    *("nvidia", "amd", "intel", "xeon", "arm64", "aarch64", "x86"),
    *("avx[a-z0-9]*", "amx[a-z0-9]*", "neon", "sve", "tensorcores?", "sparsecores?", "megacore", "mxu", "nvlink"),
    *("cuda[a-z0-9]*", "rocm", "cudnn", "cublas", "nccl", "nvml"),
    *("libtpu", "mosaic", "triton", "nki", "onednn", "llvm[a-z0-9]*"),
)
#: A word ends where letters and digits do, so that `gpu_memory`, `cuda13` and `libtpu` in a path are seen too.
PATTERN = re.compile(rf"(?<![a-z0-9])({'|'.join(WORDS)})(?![a-z0-9])", re.IGNORECASE)
#: A target as users type it, in an example of a help text or a docstring: it shows a syntax and decides nothing.
SELECTOR = re.compile(r"(?<![a-z0-9])(v[4-7][epx]|[abh]\d00|trn\d|tpu7x)-\d+(x\d+)?(?![a-z0-9])")
FRAME = ("core", "layers", "parallel", "runtime")


def words_in(text: str) -> set[str]:
    """Returns the words of hardware in a text, in small letters; `CudaMalloc` counts as two words."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", SELECTOR.sub("", text))
    return {found[1].lower() for found in PATTERN.finditer(split)}


#: What schedulers call devices in their own interfaces: `nvidia.com/gpu`, `--gres=gpu`, a node's labels.
SCHEDULERS = (
    "kanawa_runtime/launch/kubernetes/",
    "kanawa_runtime/launch/ray/",
    "kanawa_runtime/launch/skypilot/",
    "kanawa_runtime/launch/slurm/",
)
#: Names of fields that older versions wrote into configs, which still load.
SAVED = {"kanawa/contracts/workload.py": frozenset({"onednn"})}
