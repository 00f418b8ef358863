"""Which of a mask's registered predicates can be computed inside a Pallas kernel for TPUs."""

from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.predicates import unfit

#: Primitives of arithmetic that Mosaic lowers element by element for v5e to v7x (libtpu 0.0.52), integer division too.
_ELEMENTWISE = frozenset(
    {"abs", "add", "and", "broadcast_in_dim", "clamp", "clz", "convert_element_type", "cos", "div", "eq", "exp", "exp2"}
    | {"floor", "ge", "gt", "integer_pow", "le", "log", "lt", "max", "min", "mul", "ne", "neg", "not", "or"}
    | {"population_count", "rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic"}
    | {"shift_right_logical", "sign", "sin", "sqrt", "sub", "tanh", "xor"}
)


def unfit_predicates(mask: MaskSpec) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can."""
    return unfit(mask, _ELEMENTWISE, "TPU")
