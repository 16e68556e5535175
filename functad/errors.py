"""Every exception functad raises. Each is a `FunctadError` and the builtin type Python users expect.

A message says what was passed, why it cannot work, and what to write instead.
"""

from __future__ import annotations


class FunctadError(Exception):
    """Base class of every error functad raises on purpose."""


class ShapeError(FunctadError, ValueError):
    """Shapes, axes or sizes that do not fit together."""


class ArgumentError(FunctadError, ValueError):
    """An argument whose value is not one of those allowed."""


class StructureError(FunctadError, ValueError):
    """Pytrees whose structures do not match."""


class DTypeError(FunctadError, TypeError):
    """A dtype an operation cannot take, or a precision that is not enabled."""


class ArgumentTypeError(FunctadError, TypeError):
    """An argument of a type functad cannot use."""


class ImmutableError(FunctadError, TypeError):
    """An attempt to change a tensor in place."""


class UnknownAttributeError(FunctadError, AttributeError):
    """An attribute or method that an object does not have; the message names those it has."""


class MissingForwardError(FunctadError, NotImplementedError):
    """A call of a Module whose class defines no `forward`."""


class OutOfBoundsError(FunctadError, IndexError):
    """An index outside its axis."""


class AxisError(ShapeError, OutOfBoundsError):
    """An axis that a tensor does not have: a ValueError and an IndexError, as NumPy's."""


class DeviceError(FunctadError, ValueError):
    """A device that does not exist, or tensors of two backends in one op."""


class StrategyMismatchError(FunctadError, ValueError):
    """Two gradient-checkpointing strategies in one op."""


class NotTrackedError(FunctadError, RuntimeError):
    """`backward()` or a gradient asked of a tensor that no tape reaches."""


class NotALeafError(FunctadError, RuntimeError):
    """`require_grad()` on an intermediate or on a device without autodiff."""


class NotDifferentiableError(FunctadError, ValueError):
    """A derivative asked of something that has none in this mode."""


class GraphConsumedError(FunctadError, RuntimeError):
    """A second backward through residuals that were released."""


class DonatedError(FunctadError, RuntimeError):
    """A tensor whose memory a jitted function took over (`donate_argnums`)."""


class LevelError(FunctadError, RuntimeError):
    """An operation that would have to differentiate through a transform that is still open."""


class ConcreteValueError(FunctadError, TypeError):
    """A concrete value asked of a tensor that stands for many values, or for none yet."""


class NoGradientError(FunctadError, KeyError):
    """`grads[x]` where `x` has no gradient; `report` tells why."""

    def __init__(self, message: str, report: object = None):
        super().__init__(message)
        self.report = report

    def __str__(self) -> str:  # KeyError would show the repr of its argument
        return str(self.args[0])


class MissingDependencyError(FunctadError, ImportError):
    """A part of functad whose optional dependency is not installed."""


class RecordError(FunctadError, ValueError):
    """A file that cannot be written or read, or does not fit what it is loaded into."""


class NonFiniteError(FunctadError, FloatingPointError):
    """A NaN or inf that `debug_nans` found, and the op that made it."""


class CheckFailedError(FunctadError, AssertionError):
    """A derivative or an op that `functad.testing` found to be wrong."""


class FunctadWarning(UserWarning):
    """Base class of the warnings functad gives."""


class IntermediateParamsWarning(FunctadWarning):
    """A Module whose parameters are no leaves: their gradients belong to the parameters they were computed from."""


class UnlearnedStatisticsWarning(FunctadWarning):
    """A trained normalization evaluated with running statistics that no call has moved."""


class IntermediateGradientWarning(FunctadWarning):
    """`x.grad(grads)` of an intermediate, which is None."""
