"""Neural networks: functions for now, layers to come."""

from functad.nn import functional as functional
