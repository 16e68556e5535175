"""Programs as ops; they are interpreters' business too, so they are defined among the backends."""

from functad.backends.staged import RecordedOp as RecordedOp
from functad.backends.staged import StagedOp as StagedOp
