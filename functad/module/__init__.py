"""Modules: immutable pytrees of parameters with a `forward`."""

from functad.module.base import Module as Module
from functad.module.fields import field as field
from functad.module.group import ParamGroup as ParamGroup
