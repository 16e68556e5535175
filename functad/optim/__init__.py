"""Optimisers: optax's, by their names, for Modules and pytrees of tensors.

`fd.optim.adamw(1e-3)` takes what `optax.adamw` takes; schedules, clipping and every other
transformation are here by name too. Needs the extra `functad[optim]`.

>>> import functad as fd
>>> rate = fd.optim.cosine_decay_schedule(1e-3, 100)
>>> opt = fd.optim.chain(fd.optim.clip_by_norm(1.0), fd.optim.adamw(rate, mask=fd.ParamGroup("*weight")))
"""

from typing import Any as _Any

from functad.hints import listed as _listed
from functad.keywords import explain as _explain
from functad.optim.build import chain as chain
from functad.optim.build import clip_by_norm as clip_by_norm
from functad.optim.build import clip_by_value as clip_by_value
from functad.optim.build import from_optax as from_optax
from functad.optim.build import named as _named
from functad.optim.build import names as _names
from functad.optim.build import param_groups as param_groups
from functad.optim.gradients import GradientsAccumulator as GradientsAccumulator
from functad.optim.gradients import GradientsParams as GradientsParams
from functad.optim.gradients import MissingGradientsWarning as MissingGradientsWarning
from functad.optim.gradients import global_norm as global_norm
from functad.optim.optimizer import Optimizer as Optimizer
from functad.optim.state import OptState as OptState

_explain(globals())


def __getattr__(name: str) -> _Any:
    return _named(name)


def __dir__() -> list[str]:
    return sorted({*_listed(globals()), *_names()})
