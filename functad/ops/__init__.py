"""Every op, and the functions over them.

`TABLE` holds the primitive ops by name, `describe` prints all that is known of one.
"""

from __future__ import annotations

from functad.ops.activation import *  # noqa: F403  # each family lists its public names in __all__
from functad.ops.arithmetic import *  # noqa: F403
from functad.ops.at import *  # noqa: F403
from functad.ops.contract import *  # noqa: F403
from functad.ops.cumulative import *  # noqa: F403
from functad.ops.diagonal import *  # noqa: F403
from functad.ops.einsum import *  # noqa: F403
from functad.ops.elementary import *  # noqa: F403
from functad.ops.index import *  # noqa: F403
from functad.ops.join import *  # noqa: F403
from functad.ops.logic import *  # noqa: F403
from functad.ops.normalize import *  # noqa: F403
from functad.ops.op import Cost, Op, Samples
from functad.ops.order import *  # noqa: F403
from functad.ops.reduce import *  # noqa: F403
from functad.ops.rules import TABLE, add, custom, elementwise, linear, mul, multilinear, neg, nondiff, reduction
from functad.ops.shape import *  # noqa: F403
from functad.ops.transfer import *  # noqa: F403
