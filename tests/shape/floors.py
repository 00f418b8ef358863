"""The floors of every package, lowest first: a folder imports those below it, never one above or beside it.

A name is a folder or a file at a package's top. The package's own `__init__` is free: it offers names of all floors.
"""

FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "core": (
        ("_version", "errors"),
        ("guarded_read", "local_path", "status"),
        ("config",),
        ("plugins",),
        ("arrays",),
        ("foreign",),
        ("module",),
        ("kernels",),
        ("contracts",),
        ("composition",),
        ("api",),
        ("testing", "cli"),
    ),
    "layers": (
        ("_version",),
        ("basic", "losses", "adapters"),
        ("positions", "feedforward"),
        ("attention", "moe", "stack", "tune"),
        ("recurrent", "models"),
        ("recipes", "modifiers"),
        ("convert",),
        ("commands",),
        ("plugin",),
    ),
    "parallel": (
        ("_version",),
        ("rules", "passes", "sources", "remat"),
        ("context", "experts", "offload", "accumulate"),
        ("strategies", "divisibility"),
        ("pipeline", "modifiers"),
        ("plan",),
        ("plugin",),
    ),
    "backends-cpu": (
        ("_version",),
        ("processor", "cores", "allocator"),
        ("native", "onednn", "process"),
        ("kernels", "device", "mesh_rules", "doctor", "topology", "program_traits"),
        ("plugin",),
    ),
    "backends-gpu": (
        ("_version",),
        ("target_config", "shapes"),
        ("topology",),
        ("ptxas",),
        ("kernels", "schedule", "doctor", "device", "compiler", "mesh_rules", "calibration"),
        ("plugin",),
    ),
    "backends-tpu": (
        ("_version",),
        ("topology", "mesh_rules"),
        ("kernels", "schedule", "doctor", "device", "compiler", "calibration", "program_traits"),
        ("plugin",),
    ),
    "backends-neuron": (
        ("_version",),
        ("kernels", "device", "environment", "doctor", "mesh_rules", "calibration"),
        ("plugin",),
    ),
    "kernel-tools": (
        ("_version",),
        ("specs", "examples"),
        ("measuring", "features", "schedules"),
        ("commands",),
        ("plugin",),
    ),
    "runtime": (
        ("_version", "exit_codes", "faults"),
        ("storage",),
        ("compile_cache",),
        ("process",),
        ("checkpoint",),
        ("runs",),
        ("data", "learn", "goodput"),
        ("services",),
        ("train",),
        ("serve",),
        ("rollouts",),
        ("launch", "report", "experiments", "preflight"),
        ("api",),
        ("commands",),
        ("plugin",),
    ),
}

#: Arrows up that are left for their owners to mend, as (importing folder, imported folder); no entry may be added.
LEFT: dict[str, frozenset[tuple[str, str]]] = {
}
#: Circles that are left, each named by its files or folders.
CIRCLES_LEFT: frozenset[tuple[str, ...]] = frozenset(
    {
        ("kanawa_runtime.serve.http.answers", "kanawa_runtime.serve.http.metrics"),
        (
            "kanawa_runtime.serve.adapters",
            "kanawa_runtime.serve.disaggregated",
            "kanawa_runtime.serve.engine",
            "kanawa_runtime.serve.http",
            "kanawa_runtime.serve.speculation",
            "kanawa_runtime.serve.structured",
        ),
    }
)
