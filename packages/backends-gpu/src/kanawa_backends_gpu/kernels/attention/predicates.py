"""Which of a mask's registered predicates can be computed inside a Pallas kernel."""

from kanawa.kernels.masks import MaskSpec
from kanawa.kernels.predicates import unfit

#: Primitives of integer and boolean arithmetic that Pallas lowers to Triton, element by element.
_ELEMENTWISE = frozenset(
    {"abs", "add", "and", "broadcast_in_dim", "convert_element_type", "div", "eq", "ge", "gt", "le", "lt", "max", "min"}
    | {"mul", "ne", "neg", "not", "or", "rem", "select_n", "shift_left", "shift_right_arithmetic", "sign", "sub", "xor"}
    | {"shift_right_logical"}
)


def unfit_predicates(mask: MaskSpec) -> str:
    """Returns why a predicate of the mask, `any_of` included, can't run in a kernel; empty if all can."""
    return unfit(mask, _ELEMENTWISE, "Triton")
