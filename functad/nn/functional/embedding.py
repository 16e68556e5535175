"""Rows of tables by number, one-hot rows, and the linear and bilinear maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad import ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ConcreteValueError, DTypeError, OutOfBoundsError, ShapeError
from functad.ops.contract import contract_op
from functad.ops.halves import rounded_once
from functad.ops.operand import operand, operands
from functad.ops.outside import filled, inside, is_known
from functad.ops.plan import every_value
from functad.ops.quantize import QuantTensor, product, rows_of
from functad.ops.transfer import stop_gradient

__all__ = ["bilinear", "embedding", "embedding_bag", "linear", "one_hot"]


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """`input @ weight.T + bias` over the last axis.

    Args:
        input: (..., in features).
        weight: (out features, in features), or (in features,) for one output that is no axis; quantized ones too, and
            the result then has the dtype of `input`.
        bias: (out features,).

    Raises `ShapeError` if the features differ.

    >>> import functad as fd
    >>> fd.nn.functional.linear(fd.tensor([1.0, 2.0]), fd.tensor([[1.0, 1.0], [0.0, 3.0]]), fd.ones(2)).tolist()
    [4.0, 7.0]
    """
    if isinstance(weight, QuantTensor):
        return _quantized_linear(input, weight, bias)
    given = (input, weight) if bias is None else (input, weight, bias)
    x, w, *b = operands("linear", "numeric", given)
    if w.ndim not in (1, 2) or not x.ndim or x.shape[-1] != w.shape[-1]:
        raise ShapeError(
            f"linear: input of shape {x.shape} and weight of shape {w.shape} do not fit: input is (..., in features), weight "
            "(out features, in features)."
        )
    letters = "abcdefghijklmnopqrstuvw"[: x.ndim - 1]
    out = bind(
        contract_op, (x, w), (f"{letters}x,{'yx' if w.ndim == 2 else 'x'}->{letters}{'y' if w.ndim == 2 else ''}",)
    )
    if not b:
        return out
    if b[0].shape != w.shape[:-1] and b[0].size != 1:
        raise ShapeError(f"linear: bias has shape {b[0].shape}, weight {w.shape} makes it {w.shape[:-1]}.")
    return out + b[0]


def _quantized_linear(x: Any, w: QuantTensor, bias: Any) -> Any:
    x = operand(x, w.values, where="linear")
    if w.ndim != 2 or not x.ndim or x.shape[-1] != w.shape[-1]:
        raise ShapeError(
            f"linear: input of shape {x.shape} and a quantized weight of shape {w.shape} do not fit: input is (..., in "
            "features), weight (out features, in features)."
        )
    out = product(x, w.T, "linear")
    if bias is None:
        return out
    bias = operand(bias, out, where="linear")
    if bias.shape != w.shape[:1] and bias.size != 1:
        raise ShapeError(f"linear: bias has shape {bias.shape}, weight {w.shape} makes it {w.shape[:1]}.")
    return out + bias


@rounded_once
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """`input1 @ weight[k] @ input2 + bias[k]` for each output k, over the last axes.

    Args:
        input1: (..., in features 1).
        input2: (..., in features 2), with the same leading axes.
        weight: (out features, in features 1, in features 2).
        bias: (out features,).

    >>> import functad as fd
    >>> fd.nn.functional.bilinear(fd.ones((4, 2)), fd.ones((4, 3)), fd.ones((5, 2, 3))).shape
    (4, 5)
    """
    given = (input1, input2, weight) if bias is None else (input1, input2, weight, bias)
    x, y, w, *b = operands("bilinear", "numeric", given)
    if w.ndim != 3 or x.shape[:-1] != y.shape[:-1] or (x.shape[-1:], y.shape[-1:]) != (w.shape[1:2], w.shape[2:]):
        raise ShapeError(
            f"bilinear: input1 {x.shape}, input2 {y.shape} and weight {w.shape} do not fit: they are (..., a), (..., b) and "
            "(out features, a, b)."
        )
    out = ops.einsum("...i,kij,...j->...k", x, w, y)
    return out + b[0] if b else out


def one_hot(input: Any, num_classes: int = -1, dtype: Any = None) -> Any:
    """Class numbers as rows of a unit matrix, on a new last axis; in the default float dtype unless told otherwise.

    Without `num_classes` it is one more than the largest number, which then must be known (not under jit or vmap).

    >>> import functad as fd
    >>> fd.nn.functional.one_hot(fd.tensor([0, 2])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if num_classes == -1:
        values = every_value(operand(input, where="one_hot"))
        if values is None:
            raise ConcreteValueError("one_hot: under vmap and jit the values are not known; pass num_classes.")
        if not values.size:
            raise ShapeError("one_hot: an empty input tells no number of classes; pass num_classes.")
        num_classes = int(values.max()) + 1
    return ops.one_hot(input, num_classes, dtype)


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """The rows of a table by their numbers.

    Args:
        input: ints of any shape, 0 to rows - 1.
        weight: the table (rows, features), also a quantized one.
        padding_idx: a row that gets no derivative; negative counts from the end.
        max_norm: refused: torch rescales rows of `weight` in place, and tensors are immutable.
        norm_type: the norm of `max_norm`.
        scale_grad_by_freq: refused; scale the gradient of `weight` by `bincount(input)` instead.
        sparse: refused: gradients are dense.

    Raises `OutOfBoundsError` for a number outside the table; where numbers have no values (under jit), such a row is NaN.

    >>> import functad as fd
    >>> fd.nn.functional.embedding(fd.tensor([1, 0]), fd.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [[3.0, 4.0], [1.0, 2.0]]
    """
    _refuse("embedding", max_norm, norm_type, scale_grad_by_freq, sparse)
    index, table = _looked_up("embedding", input, weight)
    row = _padding_row("embedding", padding_idx, table)
    out = _rows(table, index, "embedding")
    if row is None:
        return out
    return ops.where(ops.expand_dims(index == row, -1), stop_gradient(out), out)


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Sums, means or maxima of bags of rows of a table, (bags, features); an empty bag is 0.

    Args:
        input: ints, (bags, rows per bag), or one axis with all bags behind each other.
        weight: the table (rows, features).
        offsets: with one axis: where each bag begins; the first is 0.
        max_norm: refused, as in `embedding`.
        norm_type: the norm of `max_norm`.
        scale_grad_by_freq: refused, as in `embedding`.
        mode: "sum", "mean" or "max" (equal largest ones share the derivative).
        sparse: refused: gradients are dense.
        per_sample_weights: a factor for each row, with mode "sum".
        include_last_offset: `offsets` ends with the length of `input`, which begins no bag.
        padding_idx: a row that counts as absent.

    >>> import functad as fd
    >>> table = fd.tensor([[1.0], [2.0], [4.0]])
    >>> fd.nn.functional.embedding_bag(fd.tensor([0, 1, 2]), table, fd.tensor([0, 1]), mode="sum").tolist()
    [[1.0], [6.0]]
    """
    _refuse("embedding_bag", max_norm, norm_type, scale_grad_by_freq, sparse)
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f'embedding_bag: mode must be "sum", "mean" or "max", got {mode!r}.')
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError(f'embedding_bag: per_sample_weights takes mode="sum", got {mode!r}.')
    index, table = _looked_up("embedding_bag", input, weight)
    row = _padding_row("embedding_bag", padding_idx, table)
    rows = _rows(table, index, "embedding_bag")
    return _bagged(index, rows, row, offsets, mode, per_sample_weights, include_last_offset)


@rounded_once
def _bagged(
    index: Any, rows: Any, row: int | None, offsets: Any, mode: str, per_sample_weights: Any, include_last_offset: bool
) -> Any:
    """The bags of `rows`, of which those at `row` count as absent."""
    if per_sample_weights is not None:
        factor = operand(per_sample_weights, rows, rows.dtype, "embedding_bag")
        if factor.shape != index.shape:
            raise ShapeError(
                f"embedding_bag: per_sample_weights of shape {factor.shape} must have the shape of input, {index.shape}."
            )
        rows = rows * ops.expand_dims(factor, -1)
    present = None if row is None else ops.expand_dims(index != row, -1)
    empty = float("-inf") if mode == "max" else 0.0
    if present is not None:
        rows = ops.where(present, rows, empty)
    if index.ndim == 2:
        if offsets is not None:
            raise ArgumentError("embedding_bag: input with two axes has its bags as rows and takes no offsets.")
        count = index.shape[1] if present is None else ops.sum(present.astype(rows.dtype), axis=1)
        if not index.shape[1]:
            return ops.sum(rows, axis=1)
        total = ops.max(rows, axis=1) if mode == "max" else ops.sum(rows, axis=1)
    elif index.ndim == 1 and offsets is not None:
        starts = operand(offsets, index, where="embedding_bag")
        if starts.dtype.kind not in "iu" or starts.ndim != 1:
            raise DTypeError(f"embedding_bag: offsets is a vector of ints, got {starts.dtype}{list(starts.shape)}.")
        starts = starts[:-1] if include_last_offset else starts
        total, count = _bags(rows, starts, present, empty, mode)
    else:
        raise ShapeError(
            f"embedding_bag: input is (bags, rows per bag), or one axis and offsets, got shape {index.shape} "
            f"{'without' if offsets is None else 'with'} offsets."
        )
    if mode == "sum":
        return total
    if isinstance(count, int):
        return total / count if mode == "mean" else total
    return total / ops.maximum(count, 1) if mode == "mean" else ops.where(count == 0, 0.0, total)


def _bags(rows: Any, starts: Any, present: Any, empty: float, mode: str) -> tuple[Any, Any]:
    """The sum or maximum of each bag, and the number of rows in it."""
    length, features = rows.shape
    values = every_value(starts)
    if values is not None and values.size:
        if values[0] != 0 or (np.diff(values) < 0).any():
            raise ArgumentError(f"embedding_bag: offsets must begin with 0 and not decrease, got {values.tolist()}.")
        if values[-1] > length:
            raise OutOfBoundsError(
                f"embedding_bag: the offset {values[-1]} is larger than the length of input, {length}."
            )
    begun = operand(np.zeros(length + 1, np.int32), starts)
    bag = ops.cumsum(begun.at[starts].add(1))[:length] - 1
    counted = operand(np.ones((length, 1)), rows, rows.dtype) if present is None else present.astype(rows.dtype)
    shape = (starts.shape[0], features)
    count = operand(np.zeros((shape[0], 1)), rows, rows.dtype).at[bag].add(counted)
    bags = operand(np.full(shape, empty), rows, rows.dtype)
    return (bags.at[bag].max(rows) if mode == "max" else bags.at[bag].add(rows)), count


def _looked_up(where: str, input: Any, weight: Any) -> tuple[Any, Any]:
    table = weight if isinstance(weight, QuantTensor) else operand(weight, where=where)
    index = operand(input, table.values if isinstance(table, QuantTensor) else table, where=where)
    if index.dtype.kind not in "iu":
        raise DTypeError(
            f"{where}: input holds row numbers, which are ints, got {index.dtype}{list(index.shape)}; the table comes second: "
            f"{where}(input, weight)."
        )
    if table.ndim != 2:
        raise ShapeError(f"{where}: weight is a table (rows, features), got shape {table.shape}.")
    values = every_value(index)
    if values is not None and values.size and not 0 <= values.min() <= values.max() < table.shape[0]:
        bad = int(values.min() if values.min() < 0 else values.max())
        raise OutOfBoundsError(f"{where}: there is no row {bad}: weight has the rows 0 to {table.shape[0] - 1}.")
    return index, table


def _rows(table: Any, index: Any, where: str) -> Any:
    if isinstance(table, QuantTensor):
        out = rows_of(table, lambda x: ops.getitem(x, index, where))
    else:
        out = ops.getitem(table, index, where)
    return out if is_known(index) else filled(out, inside(index, 0, table.shape[0]), 1)


def _padding_row(where: str, padding_idx: int | None, table: Any) -> int | None:
    if padding_idx is None:
        return None
    rows = table.shape[0]
    if not -rows <= padding_idx < rows:
        raise OutOfBoundsError(f"{where}: padding_idx={padding_idx} is none of the {rows} rows of weight.")
    return padding_idx % rows


def _refuse(where: str, max_norm: Any, norm_type: Any, scale_grad_by_freq: bool, sparse: bool) -> None:
    if max_norm is not None:
        raise ArgumentError(
            f"{where}: max_norm={max_norm} would rescale rows of weight in place, and tensors are immutable. Rescale them "
            f"yourself, here or after each step: weight * ({max_norm} / weight.norm({norm_type}, axis=1, "
            "keepdims=True)).clip(max=1)."
        )
    if scale_grad_by_freq:
        raise ArgumentError(
            f"{where}: scale_grad_by_freq is not supported; divide the gradient of weight by the counts of the rows."
        )
    if sparse:
        raise ArgumentError(f"{where}: sparse gradients are not supported; leave sparse=False, the gradient is dense.")
