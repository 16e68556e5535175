"""Borders as layers, with torch's names: zeros, a number, the mirrored, the repeated or the opposite edge."""

from __future__ import annotations

from typing import Any, ClassVar

from functad.errors import ArgumentError
from functad.module import Module
from functad.nn import functional as F
from functad.nn.functional.spatial import integer


class _Pad(Module):
    padding: Any

    _ndim: ClassVar[int]
    _mode: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        count, where = 2 * self._ndim, type(self).__name__
        if not isinstance(self.padding, (tuple, list)):
            self.padding = (integer(where, "padding", self.padding, -(10**9)),) * count
        elif len(self.padding) != count:
            raise ArgumentError(
                f"{where}: padding is an int, or {count} ints, (before, after) for the last axis, then for the one before "
                f"it; got {self.padding!r}."
            )
        self.padding = tuple(self.padding)

    def forward(self, x: Any) -> Any:
        """`x` with the border."""
        return F.pad(x, self.padding, self._mode)


class _Constant(_Pad):
    value: float = 0.0

    def forward(self, x: Any) -> Any:
        """`x` with the border."""
        return F.pad(x, self.padding, value=self.value)


class ConstantPad1d(_Constant):
    """A border of `value` along the last axis.

    Args:
        padding: an int, or (before, after) for each axis, from the last; negative numbers crop.
        value: what the border holds.

    >>> import functad as fd
    >>> fd.nn.ConstantPad1d((1, 2), 5.0)(fd.tensor([[1.0, 2.0]])).tolist()
    [[5.0, 1.0, 2.0, 5.0, 5.0]]
    """

    _ndim = 1


class ConstantPad2d(_Constant):
    """A border of `value` along the last two axes; arguments as those of `ConstantPad1d`.

    >>> import functad as fd
    >>> fd.nn.ConstantPad2d(1, 5.0)(fd.ones((1, 3, 4))).shape
    (1, 5, 6)
    """

    _ndim = 2


class ConstantPad3d(_Constant):
    """A border of `value` along the last three axes; arguments as those of `ConstantPad1d`.

    >>> import functad as fd
    >>> fd.nn.ConstantPad3d((0, 0, 0, 0, 1, 0), 5.0)(fd.ones((1, 2, 3, 4))).shape
    (1, 3, 3, 4)
    """

    _ndim = 3


class ZeroPad1d(_Pad):
    """A border of zeros along the last axis.

    >>> import functad as fd
    >>> fd.nn.ZeroPad1d(1)(fd.tensor([[1.0, 2.0]])).tolist()
    [[0.0, 1.0, 2.0, 0.0]]
    """

    _ndim = 1


class ZeroPad2d(_Pad):
    """A border of zeros along the last two axes.

    >>> import functad as fd
    >>> fd.nn.ZeroPad2d((1, 0, 0, -1))(fd.tensor([[[1.0, 2.0], [3.0, 4.0]]])).tolist()
    [[[0.0, 1.0, 2.0]]]
    """

    _ndim = 2


class ZeroPad3d(_Pad):
    """A border of zeros along the last three axes.

    >>> import functad as fd
    >>> fd.nn.ZeroPad3d(1)(fd.ones((1, 2, 3, 4))).shape
    (1, 4, 5, 6)
    """

    _ndim = 3


class ReflectionPad1d(_Pad):
    """A border along the last axis that mirrors what is inside, without the edge itself.

    >>> import functad as fd
    >>> fd.nn.ReflectionPad1d(2)(fd.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]]
    """

    _ndim = 1
    _mode = "reflect"


class ReflectionPad2d(_Pad):
    """A border along the last two axes that mirrors what is inside, without the edge itself.

    >>> import functad as fd
    >>> fd.nn.ReflectionPad2d(1)(fd.ones((1, 3, 4))).shape
    (1, 5, 6)
    """

    _ndim = 2
    _mode = "reflect"


class ReflectionPad3d(_Pad):
    """A border along the last three axes that mirrors what is inside, without the edge itself.

    >>> import functad as fd
    >>> fd.nn.ReflectionPad3d(1)(fd.ones((1, 2, 3, 4))).shape
    (1, 4, 5, 6)
    """

    _ndim = 3
    _mode = "reflect"


class ReplicationPad1d(_Pad):
    """A border along the last axis that repeats the edge.

    >>> import functad as fd
    >>> fd.nn.ReplicationPad1d((2, 0))(fd.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 1.0, 1.0, 2.0]]
    """

    _ndim = 1
    _mode = "replicate"


class ReplicationPad2d(_Pad):
    """A border along the last two axes that repeats the edge.

    >>> import functad as fd
    >>> fd.nn.ReplicationPad2d(1)(fd.ones((1, 3, 4))).shape
    (1, 5, 6)
    """

    _ndim = 2
    _mode = "replicate"


class ReplicationPad3d(_Pad):
    """A border along the last three axes that repeats the edge.

    >>> import functad as fd
    >>> fd.nn.ReplicationPad3d(1)(fd.ones((1, 2, 3, 4))).shape
    (1, 4, 5, 6)
    """

    _ndim = 3
    _mode = "replicate"


class CircularPad1d(_Pad):
    """A border along the last axis that goes on at the other side.

    >>> import functad as fd
    >>> fd.nn.CircularPad1d(1)(fd.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[3.0, 1.0, 2.0, 3.0, 1.0]]
    """

    _ndim = 1
    _mode = "circular"


class CircularPad2d(_Pad):
    """A border along the last two axes that goes on at the other side.

    >>> import functad as fd
    >>> fd.nn.CircularPad2d(1)(fd.ones((1, 3, 4))).shape
    (1, 5, 6)
    """

    _ndim = 2
    _mode = "circular"


class CircularPad3d(_Pad):
    """A border along the last three axes that goes on at the other side.

    >>> import functad as fd
    >>> fd.nn.CircularPad3d(1)(fd.ones((1, 2, 3, 4))).shape
    (1, 4, 5, 6)
    """

    _ndim = 3
    _mode = "circular"
