"""What a parameter is for, from its ParamSpec alone: the roles by which groups choose."""

from collections.abc import Mapping

from kanawa.arrays.spec import ParamSpec

from kanawa_runtime.learn.matrices import hidden_matrices

ROLES = ("embedding", "matrix", "expert", "vector")


def roles(specs: Mapping[str, ParamSpec]) -> dict[str, str]:
    """Returns the role of each parameter.

    "embedding": looks up or scores a vocabulary (embeddings and heads); "matrix": from hidden to hidden; "expert": such
    a matrix of each expert; "vector": all else, such as norms and biases.
    """
    matrices = hidden_matrices(specs)

    def role(path: str, spec: ParamSpec) -> str:
        if path not in matrices:
            return "embedding" if "vocab" in spec.axes else "vector"
        # A router's matrix has an `experts` axis too, but as its output.
        batch = [spec.axes[axis] for axis in matrices[path].batch]
        return "expert" if "experts" in batch else "matrix"

    return {path: role(path, spec) for path, spec in specs.items()}
