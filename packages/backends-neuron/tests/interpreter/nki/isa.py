"""nki.isa: one function an instruction, as far as the kernels use them, with the rules of its documentation."""

from typing import Any

import numpy as np

from nki import language as nl
from nki._machine import machine, require
from nki._tensor import ON_CHIP, Register, Tensor

_FP32 = np.dtype("float32")


class oob_mode:  # noqa: N801
    """What happens to elements outside of a tensor."""

    error, skip = "error", "skip"


class reduce_cmd:  # noqa: N801
    """What an activation does with its accumulator."""

    idle, reset_reduce = "idle", "reset_reduce"


class engine:  # noqa: N801
    """Engines by name."""

    unknown, tensor, vector, scalar, gpsimd = "unknown", "tensor", "vector", "scalar", "gpsimd"


def dma_copy(dst: Tensor, src: Tensor, oob_mode: str = oob_mode.error) -> None:
    """Copies between HBM and SBUF, casting through fp32; elements outside are an error, or skipped."""
    for what, tensor in (("dst", dst), ("src", src)):
        require(tensor.space != "psum", f"dma_copy {what} lies in PSUM: copy it to SBUF first")
    require(dst.shape == src.shape, f"dma_copy of {src.shape} to {dst.shape}")
    skip = oob_mode == "skip"
    values = src.read(skip=skip)
    if skip and not src.inside().all():
        # What isn't read leaves the destination as it was.
        values = np.where(src.inside(), values, dst.read().astype(values.dtype))
    dst.write(values, skip=skip)


def memset(dst: Tensor, value: float) -> None:
    """Fills a tile with a constant."""
    dst.on_chip("memset dst")
    require(_is_float(dst) == isinstance(value, float), f"memset of {dst.dtype} with {value!r}")
    dst.write(np.full(dst.shape, value, dst.dtype))


def tensor_copy(dst: Tensor, src: Tensor) -> None:
    """Copies on the chip."""
    _elementwise("tensor_copy", dst, src)
    dst.write(src.read().reshape(dst.shape))


def tensor_copy_predicated(dst: Tensor, src: Any, predicate: Tensor, reverse_pred: bool = False) -> None:
    """dst = src, a tile or a number, where the predicate isn't zero; elsewhere dst stays as it was."""
    unsigned = (nl.uint8, nl.uint16, nl.uint32)
    require(predicate.dtype in unsigned, f"tensor_copy_predicated predicate is {predicate.dtype}; uint8, 16 or 32")
    _elementwise("tensor_copy_predicated", dst, predicate)
    is_tile = isinstance(src, Tensor)
    if is_tile:
        _elementwise("tensor_copy_predicated", dst, src)
        require(src.dtype == dst.dtype, f"tensor_copy_predicated of {src.dtype} to {dst.dtype}")
        require({src.space, predicate.space} != {"psum"}, "tensor_copy_predicated: src and predicate lie in PSUM")
    else:
        require(_is_float(dst) == isinstance(src, float), f"tensor_copy_predicated of {src!r} to {dst.dtype}")
    require(not (is_tile and reverse_pred), "tensor_copy_predicated reverses its predicate for a number only")
    values = src.read().reshape(dst.shape) if is_tile else np.full(dst.shape, src, dst.dtype)
    chosen = (predicate.read().reshape(dst.shape) != 0) != reverse_pred
    dst.write(np.where(chosen, values, dst.read()))


def nc_matmul(dst: Tensor, stationary: Tensor, moving: Tensor, accumulate: bool | None = None) -> None:
    """dst = stationary.T @ moving, the contraction along partitions; accumulated in fp32."""
    for what, tensor in (("stationary", stationary), ("moving", moving)):
        tensor.on_chip(f"nc_matmul {what}")
        require(tensor.space == "sbuf", f"nc_matmul {what} lies in {tensor.space}; it must be in SBUF")
        require(_is_float(tensor), f"nc_matmul {what} is {tensor.dtype}")
    dst.on_chip("nc_matmul dst")
    require(dst.space == "psum", f"nc_matmul dst lies in {dst.space}; it must be in PSUM")
    require(dst.dtype == _FP32, f"nc_matmul dst is {dst.dtype}; it accumulates in float32")
    both = (stationary.dtype == _FP32, moving.dtype == _FP32)
    require(len(set(both)) == 1, f"nc_matmul of {stationary.dtype} and {moving.dtype}: float32 goes with float32")
    k, m, n = stationary.shape[0], stationary.free_size, moving.free_size
    require(moving.shape[0] == k, f"nc_matmul contracts {k} with {moving.shape[0]} partitions")
    require(m <= 128, f"nc_matmul stationary has {m} columns; 128 at most")
    require(n <= 512, f"nc_matmul moving has {n} columns; 512 at most")
    require((dst.shape[0], dst.free_size) == (m, n), f"nc_matmul dst {dst.shape}; the product is {(m, n)}")
    require(
        dst.storage.loop_depth == machine().loop_depth,
        "nc_matmul writes PSUM that was allocated outside of the device loop",
    )
    left, right = (x.read().reshape(k, -1).astype(np.float32) for x in (stationary, moving))
    product = (left.T @ right).reshape(dst.shape)
    # By default the first write to a place overwrites, and later ones add.
    adds = bool(dst.written.any()) if accumulate is None else accumulate
    dst.write(dst.read() + product if adds else product)


def nc_transpose(dst: Tensor, data: Tensor, engine: str = engine.unknown) -> None:
    """Swaps partitions and the free axis: on the Tensor Engine from SBUF to PSUM."""
    del engine
    data.on_chip("nc_transpose data")
    dst.on_chip("nc_transpose dst")
    require(data.space == "sbuf" and dst.space == "psum", "nc_transpose reads SBUF and writes PSUM")
    require(data.dtype == dst.dtype, f"nc_transpose of {data.dtype} to {dst.dtype}")
    require(data.free_size <= 128, f"nc_transpose of {data.shape}; 128 by 128 at most")
    require((dst.shape[0], dst.free_size) == (data.free_size, data.shape[0]), f"{data.shape} to {dst.shape}")
    dst.write(data.read().reshape(data.shape[0], -1).T.reshape(dst.shape))


def tensor_tensor(dst: Tensor, data1: Tensor, data2: Tensor, op: nl.Operator) -> None:
    """dst = data1 op data2."""
    _elementwise("tensor_tensor", dst, data1, data2)
    require({data1.space, data2.space} != {"psum"}, "tensor_tensor: both inputs lie in PSUM")
    left, right = (x.read().reshape(dst.shape).astype(np.float32) for x in (data1, data2))
    dst.write(op.apply(left, right))


def tensor_scalar(
    dst: Tensor,
    data: Tensor,
    op0: nl.Operator,
    operand0: Any,
    reverse0: bool = False,
    op1: nl.Operator | None = None,
    operand1: Any = None,
    reverse1: bool = False,
) -> None:
    """dst = (data op0 operand0) op1 operand1, each operand a number or one a partition."""
    _elementwise("tensor_scalar", dst, data)
    result = _flat(data)
    for op, operand, reverse in ((op0, operand0, reverse0), (op1, operand1, reverse1)):
        if op is not None:
            scalar = _per_partition("tensor_scalar operand", operand, data)
            result = op.apply(scalar, result) if reverse else op.apply(result, scalar)
    dst.write(np.broadcast_to(result, (data.shape[0], data.free_size)).reshape(dst.shape))


def scalar_tensor_tensor(
    dst: Tensor, data: Tensor, op0: nl.Operator, operand0: Any, op1: nl.Operator, operand1: Tensor
) -> None:
    """dst = (data op0 operand0) op1 operand1: the first a number or one a partition, the second a tile."""
    _elementwise("scalar_tensor_tensor", dst, data, operand1)
    require({data.space, operand1.space} != {"psum"}, "scalar_tensor_tensor: data and operand1 lie in PSUM")
    first = op0.apply(_flat(data), _per_partition("scalar_tensor_tensor operand0", operand0, data))
    dst.write(op1.apply(first, _flat(operand1)).reshape(dst.shape))


def tensor_reduce(dst: Tensor, op: nl.Operator, data: Tensor, axis: Any, negate: bool = False) -> None:
    """Reduces the last free axes."""
    data.on_chip("tensor_reduce data")
    dst.on_chip("tensor_reduce dst")
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    last = tuple(range(len(data.shape) - len(axes), len(data.shape)))
    require(axes == last and 0 not in axes, f"tensor_reduce along {axes} of {data.shape}: the last axes, never 0")
    require(op.reduce is not None, f"tensor_reduce with {op.name}")
    values = op.reduce.reduce(data.read().astype(np.float32), axis=axes)
    require(dst.free_size == values[0].size and dst.shape[0] == data.shape[0], f"tensor_reduce to {dst.shape}")
    dst.write((-values if negate else values).reshape(dst.shape))


def activation(
    dst: Tensor,
    op: nl.Operator,
    data: Tensor,
    bias: Tensor | None = None,
    scale: Any = 1.0,
    reduce_op: nl.Operator | None = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: str = reduce_cmd.idle,
) -> None:
    """dst = op(data * scale + bias), and its sum along the free axis if asked."""
    _elementwise("activation", dst, data)
    require(op.activation, f"activation with {op.name}, which is no activation function")
    # NeuronCore-v2 takes no number here.
    require(bias is None or isinstance(bias, Tensor), f"activation bias {bias!r}: one a partition, in SBUF or PSUM")
    values = _flat(data) * _per_partition("activation scale", scale, data)
    if bias is not None:
        values = values + _per_partition("activation bias", bias, data)
    with np.errstate(all="raise", under="ignore"):
        result = op.apply(values).astype(np.float32)
    dst.write(result.reshape(dst.shape))
    if reduce_res is not None:
        require(reduce_op is nl.add and reduce_cmd == "reset_reduce", "activation adds up, from nothing")
        require(reduce_res.on_chip("reduce_res").shape == (data.shape[0], 1), f"reduce_res {reduce_res.shape}")
        reduce_res.write(result.sum(axis=1, keepdims=True))


def reciprocal(dst: Tensor, data: Tensor) -> None:
    """dst = 1 / data."""
    _elementwise("reciprocal", dst, data)
    with np.errstate(all="raise", under="ignore"):
        dst.write((1 / _flat(data)).reshape(dst.shape))


def iota(dst: Tensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0) -> None:
    """Writes offset + partition * channel_multiplier + the pattern's steps, in int32, cast to dst."""
    require(dst.on_chip("iota dst").space == "sbuf", "iota writes SBUF")
    dst.write(_affine(dst, pattern, offset, channel_multiplier).reshape(dst.shape))


def affine_select(
    dst: Tensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Tensor,
    on_false_value: float,
    cmp_op: nl.Operator = nl.equal,
    offset: int = 0,
) -> None:
    """dst = on_true_tile where the affine value compares true with 0, else the number."""
    _elementwise("affine_select", dst, on_true_tile)
    require({dst.space, on_true_tile.space} == {"sbuf"}, "affine_select works in SBUF")
    chosen = cmp_op.apply(_affine(dst, pattern, offset, channel_multiplier), 0).astype(bool)
    dst.write(np.where(chosen, _flat(on_true_tile), np.float32(on_false_value)).reshape(dst.shape))


def register_alloc(x: int = 0) -> Register:
    """Returns a new register."""
    return Register(x)


def register_load(dst: Register, src: Tensor) -> None:
    """Loads a register from a [1, 1] tile of int32."""
    require(src.shape == (1, 1) and src.dtype == np.dtype("int32"), f"register_load of {src.dtype} {src.shape}")
    require(src.space == "sbuf", "register_load reads SBUF")
    dst.value = int(src.read()[0, 0])


def _elementwise(what: str, dst: Tensor, *inputs: Tensor) -> None:
    for name, tensor in (("dst", dst), *(("input", x) for x in inputs)):
        tensor.on_chip(f"{what} {name}")
        require(tensor.space in ON_CHIP, f"{what} {name} lies in {tensor.space}")
        same = (tensor.shape[0], tensor.free_size) == (dst.shape[0], dst.free_size)
        require(same, f"{what} of {tensor.shape} and {dst.shape}: as many partitions and elements a partition")


def _flat(tensor: Tensor) -> np.ndarray:
    return tensor.read().reshape(tensor.shape[0], -1).astype(np.float32)


def _per_partition(what: str, operand: Any, data: Tensor) -> Any:
    if not isinstance(operand, Tensor):
        require(isinstance(operand, float | int), f"{what} {operand!r}")
        return np.float32(operand)
    operand.on_chip(what)
    require((operand.shape[0], operand.free_size) == (data.shape[0], 1), f"{what} {operand.shape} for {data.shape}")
    require(operand.dtype == _FP32, f"{what} is {operand.dtype}; it must be float32")
    return operand.read().reshape(-1, 1)


def _affine(dst: Tensor, pattern: Any, offset: int, channel_multiplier: int) -> np.ndarray:
    values = np.zeros([number for _, number in pattern], np.int64)
    require(len(pattern) <= 4, f"a pattern of {len(pattern)} dimensions; 4 at most")
    for axis, (step, number) in enumerate(pattern):
        along = [1] * len(pattern)
        along[axis] = number
        values += (step * np.arange(number)).reshape(along)
    require(values.size == dst.free_size, f"a pattern of {values.size} elements for {dst.shape}")
    rows = channel_multiplier * np.arange(dst.shape[0])[:, None]
    return offset + rows + values.reshape(1, -1)


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in (_FP32, nl.float16, nl.bfloat16)
