"""Functions of neural networks, with torch's names and argument order; `axis` where torch says `dim`.

>>> import functad as fd
>>> import functad.nn.functional as F
>>> F.relu(fd.tensor([-1.0, 2.0])).tolist()
[0.0, 2.0]
"""

import typing as _typing

from functad.hints import listed as _listed
from functad.hints import missing_name as _missing_name
from functad.keywords import explain as _explain
from functad.nn.functional.activation import *  # each family lists its names in __all__
from functad.nn.functional.attention import *
from functad.nn.functional.classify import *
from functad.nn.functional.convolution import *
from functad.nn.functional.ctc import *
from functad.nn.functional.distance import *
from functad.nn.functional.dropout import *
from functad.nn.functional.embedding import *
from functad.nn.functional.fractional import *
from functad.nn.functional.loss import *
from functad.nn.functional.norm import *
from functad.nn.functional.padding import *
from functad.nn.functional.pools import *
from functad.nn.functional.quantize import *
from functad.nn.functional.sampling import *

_explain(globals())


def __dir__() -> list[str]:
    return _listed(globals())


if not _typing.TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise _missing_name(__name__, name, __dir__())
