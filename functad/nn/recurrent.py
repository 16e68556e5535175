"""Recurrent layers: torch's arguments, parameter names, gate order and equations; the loop over time is one `fd.scan`."""

from __future__ import annotations

from typing import Any, ClassVar

from functad import ops, random
from functad.creation import zeros
from functad.device import Device
from functad.errors import ArgumentError, ShapeError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import Maker, at_least, beside, entered, fan_bound, probability
from functad.param import Param
from functad.tensor import Tensor
from functad.transforms.control_flow import scan


def _rnn(state: Any, given: Any, weight: Any, bias: Any, activation: Any) -> tuple[Any, Any]:
    """The next state and the output; `given` is what the input adds to the gates."""
    h = activation(given + _affine(state, weight, bias))
    return h, h


def _lstm(state: Any, given: Any, weight: Any, bias: Any, activation: Any) -> tuple[Any, Any]:
    h, c = state
    i, f, g, o = ops.split(given + _affine(h, weight, bias), 4, axis=-1)
    c = F.sigmoid(f) * c + F.sigmoid(i) * activation(g)
    h = F.sigmoid(o) * activation(c)
    return (h, c), h


def _gru(state: Any, given: Any, weight: Any, bias: Any, activation: Any) -> tuple[Any, Any]:
    r_in, z_in, n_in = ops.split(given, 3, axis=-1)
    r_h, z_h, n_h = ops.split(_affine(state, weight, bias), 3, axis=-1)
    r, z = F.sigmoid(r_in + r_h), F.sigmoid(z_in + z_h)
    n = activation(n_in + r * n_h)
    h = n + z * (state - n)
    return h, h


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    out = x @ weight.T
    return out if bias is None else out + bias


class _Cell(Module):
    input_size: int = field(static=True)
    hidden_size: int = field(static=True)
    weight_ih: Param
    weight_hh: Param
    bias_ih: Param | None
    bias_hh: Param | None

    _gates: ClassVar[int]
    _step: ClassVar[Any]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        name = type(self).__name__
        at_least(name, 1, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        make, bound, rows = Maker(name, key, dtype, device), fan_bound(hidden_size), self._gates * hidden_size
        self.weight_ih = make.uniform((rows, input_size), bound)
        self.weight_hh = make.uniform((rows, hidden_size), bound)
        self.bias_ih = make.uniform((rows,), bound) if bias else None
        self.bias_hh = make.uniform((rows,), bound) if bias else None

    def forward(self, x: Any, state: Any = None) -> Any:
        """The state after `x` of shape (batch, input_size) or (input_size); zeros before it without a `state`."""
        x = entered(type(self).__name__, x, self.weight_ih)
        _check_width(type(self).__name__, x, self.input_size)
        if state is None:
            h = zeros((*x.shape[:-1], self.hidden_size), x.dtype, x.device)
            state = (h, h) if self._gates == 4 else h
        elif self._gates == 4:
            h, c = state
            state = beside(type(self).__name__, (h, c), x)
        else:
            state = beside(type(self).__name__, state, x)
        given = _affine(x, self.weight_ih, self.bias_ih)
        return type(self)._step(state, given, self.weight_hh, self.bias_hh, F.tanh)[0]


class RNNCell(_Cell):
    """One step of `RNN` with tanh: `h = cell(x, h)`.

    >>> import functad as fd
    >>> cell = fd.nn.RNNCell(2, 3, key=fd.random.key(0))
    >>> h = cell(fd.ones((5, 2)))
    >>> cell(fd.ones((5, 2)), h).shape
    (5, 3)
    """

    _gates, _step = 1, staticmethod(_rnn)


class LSTMCell(_Cell):
    """One step of `LSTM`: `h, c = cell(x, (h, c))`.

    >>> import functad as fd
    >>> h, c = fd.nn.LSTMCell(2, 3, key=fd.random.key(0))(fd.ones((5, 2)))
    >>> h.shape, c.shape
    ((5, 3), (5, 3))
    """

    _gates, _step = 4, staticmethod(_lstm)


class GRUCell(_Cell):
    """One step of `GRU`: `h = cell(x, h)`.

    >>> import functad as fd
    >>> cell = fd.nn.GRUCell(2, 3, key=fd.random.key(0))
    >>> cell(fd.ones((5, 2)), fd.zeros((5, 3))).shape, cell.weight_ih.shape
    ((5, 3), (9, 2))
    """

    _gates, _step = 3, staticmethod(_gru)


class _Recurrent(Module):
    input_size: int = field(static=True)
    hidden_size: int = field(static=True)
    num_layers: int = field(static=True)
    bias: bool = field(static=True)
    batch_first: bool = field(static=True)
    dropout: float = field(static=True)
    bidirectional: bool = field(static=True)
    nonlinearity: str = field(static=True)

    _gates: ClassVar[int]
    _step: ClassVar[Any]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        name = type(self).__name__
        at_least(name, 1, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        probability(name, "dropout", dropout)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional = bidirectional = bool(bidirectional)
        self.nonlinearity = "tanh"
        make, bound, rows = Maker(name, key, dtype, device), fan_bound(hidden_size), self._gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * (1 + bidirectional)
            for suffix in ("", "_reverse")[: 1 + bidirectional]:
                setattr(self, f"weight_ih_l{layer}{suffix}", make.uniform((rows, width), bound))
                setattr(self, f"weight_hh_l{layer}{suffix}", make.uniform((rows, hidden_size), bound))
                if bias:
                    setattr(self, f"bias_ih_l{layer}{suffix}", make.uniform((rows,), bound))
                    setattr(self, f"bias_hh_l{layer}{suffix}", make.uniform((rows,), bound))

    def forward(self, x: Any, state: Any = None, *, key: Any = None) -> tuple[Any, Any]:
        """The outputs of the last layer at every time, and the last states of all layers.

        Args:
            x: shape (time, batch, input_size); (batch, time, input_size) with `batch_first`; (time, input_size).
            state: the states to start with, of shape (layers * directions, batch, hidden_size); a pair of
                these for an LSTM; zeros without it.
            key: what dropout between layers draws from in training.
        """
        x = entered(type(self).__name__, x, getattr(self, "weight_ih_l0"))  # noqa: B009  # a field made by setattr
        _check_width(type(self).__name__, x, self.input_size)
        if state is not None:
            state = beside(type(self).__name__, tuple(state) if self._gates == 4 else state, x)
        if x.ndim not in (2, 3):
            raise ShapeError(f"{type(self).__name__}: x must have 2 or 3 axes, got shape {x.shape}.")
        batched = x.ndim == 3
        if not batched:
            x = x[:, None]
            state = None if state is None else _each(state, lambda s: s[:, None])
        elif self.batch_first:
            x = x.swapaxes(0, 1)
        out, last = self._run(x, state, key)
        if not batched:
            return out[:, 0], _each(last, lambda s: s[:, 0])
        return (out.swapaxes(0, 1) if self.batch_first else out), last

    def _run(self, x: Any, state: Any, key: Any) -> tuple[Any, Any]:
        rows, ends = 1 + self.bidirectional, []
        first = self._first_states(x, state, rows * self.num_layers)
        for layer in range(self.num_layers):
            outs = []
            for side, suffix in enumerate(("", "_reverse")[:rows]):
                end, out = self._pass(x, first[layer * rows + side], f"_l{layer}{suffix}", bool(side))
                ends.append(end)
                outs.append(out)
            x = outs[0] if rows == 1 else ops.concatenate(outs, axis=-1)
            if self.dropout and self.training and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, key=None if key is None else random.fold_in(key, layer))
        if self._gates == 4:
            return x, tuple(ops.stack([end[i] for end in ends]) for i in range(2))
        return x, ops.stack(ends)

    def _first_states(self, x: Any, state: Any, count: int) -> list[Any]:
        shape = (x.shape[1], self.hidden_size)
        if state is None:
            h = zeros(shape, x.dtype, x.device)
            return [(h, h) if self._gates == 4 else h] * count
        parts = state if self._gates == 4 else (state,)
        if len(parts) != (2 if self._gates == 4 else 1) or any(p.shape != (count, *shape) for p in parts):
            what = "a pair of tensors" if self._gates == 4 else "a tensor"
            raise ShapeError(
                f"{type(self).__name__}: state must be {what} of shape {(count, *shape)} (layers * directions, batch, "
                f"hidden_size), got {[tuple(p.shape) for p in parts]}."
            )
        return [tuple(p[i] for p in parts) if self._gates == 4 else parts[0][i] for i in range(count)]

    def _pass(self, x: Any, state: Any, name: str, reverse: bool) -> tuple[Any, Any]:
        """One layer in one direction; what the inputs add is one product for all times."""
        weight = getattr(self, f"weight_hh{name}")
        bias = getattr(self, f"bias_hh{name}") if self.bias else None
        given = _affine(x, getattr(self, f"weight_ih{name}"), getattr(self, f"bias_ih{name}") if self.bias else None)
        step, activation = type(self)._step, F.tanh if self.nonlinearity == "tanh" else F.relu
        return scan(lambda s, g: step(s, g, weight, bias, activation), state, given, reverse=reverse)


class RNN(_Recurrent):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh); arguments as those of `LSTM`, and `nonlinearity="tanh"|"relu"` (Elman 1990).

    >>> import functad as fd
    >>> rnn = fd.nn.RNN(2, 3, num_layers=2, nonlinearity="relu", key=fd.random.key(0))
    >>> out, h = rnn(fd.ones((7, 5, 2)))
    >>> out.shape, h.shape
    ((7, 5, 3), (2, 5, 3))
    """

    _gates, _step = 1, staticmethod(_rnn)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}.")
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            key=key, dtype=dtype, device=device,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with torch's parameters and gate order i, f, g, o.

    Args:
        input_size: the length of the last axis of what it takes.
        hidden_size: that of its states and outputs.
        num_layers: how many are stacked.
        bias: whether it has biases.
        batch_first: whether the batch is axis 0 of input and output instead of axis 1.
        dropout: the probability between layers, in training.
        bidirectional: whether a second pass from the end is put beside each layer's output.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the parameters.
        device: where they are.

    >>> import functad as fd
    >>> lstm = fd.nn.LSTM(2, 3, batch_first=True, key=fd.random.key(0))
    >>> out, (h, c) = lstm(fd.ones((5, 7, 2)))
    >>> out.shape, h.shape
    ((5, 7, 3), (1, 5, 3))
    """

    _gates, _step = 4, staticmethod(_lstm)


class GRU(_Recurrent):
    """The gated recurrent unit (Cho et al. 2014) in the form of torch and cuDNN; arguments as those of `LSTM`.

    >>> import functad as fd
    >>> gru = fd.nn.GRU(2, 3, bidirectional=True, key=fd.random.key(0))
    >>> out, h = gru(fd.ones((7, 5, 2)))
    >>> out.shape, h.shape
    ((7, 5, 6), (2, 5, 3))
    """

    _gates, _step = 3, staticmethod(_gru)


class Bidirectional(Module):
    """Two recurrent layers, one from each end of time; their outputs side by side.

    >>> import functad as fd
    >>> k1, k2 = fd.random.split(fd.random.key(0))
    >>> both = fd.nn.Bidirectional(fd.nn.GRU(2, 3, key=k1), fd.nn.GRU(2, 3, key=k2))
    >>> both(fd.ones((7, 5, 2)))[0].shape
    (7, 5, 6)
    """

    ahead: Module
    back: Module

    def __post_init__(self) -> None:
        if getattr(self.ahead, "batch_first", False) != getattr(self.back, "batch_first", False):
            raise ArgumentError("Bidirectional: both layers must have the same batch_first.")

    def forward(self, x: Any, state: Any = (None, None), *, key: Any = None) -> tuple[Any, Any]:
        """The outputs side by side, and the pair of last states; `state` is a pair too."""
        x = entered("Bidirectional", x)
        axis = 1 if getattr(self.ahead, "batch_first", False) and x.ndim == 3 else 0
        keys = (None, None) if key is None else random.split(key)
        out, last = self.ahead(x, state[0], key=keys[0])
        back, first = self.back(ops.flip(x, axis), state[1], key=keys[1])
        return ops.concatenate([out, ops.flip(back, axis)], axis=-1), (last, first)


def _each(state: Any, fn: Any) -> Any:
    return tuple(map(fn, state)) if isinstance(state, tuple) else fn(state)


def _check_width(name: str, x: Any, width: int) -> None:
    if not x.ndim or x.shape[-1] != width:
        raise ShapeError(f"{name}: the last axis of x must be input_size={width}, got shape {x.shape}.")
