"""Random numbers from explicit keys, as in `jax.random`: the same key gives the same numbers, on every device.

What draws without a key (dropout, the first weights of layers) takes one from the default generator:
`draw_key`, seeded by `fd.seed`.

>>> import functad as fd
>>> key = fd.random.key(0)
>>> k1, k2 = fd.random.split(key)
>>> fd.random.normal(k1, (2, 3)).shape
(2, 3)
"""

from functad.random.continuous import bernoulli as bernoulli
from functad.random.continuous import normal as normal
from functad.random.continuous import permutation as permutation
from functad.random.continuous import randint as randint
from functad.random.continuous import truncated_normal as truncated_normal
from functad.random.continuous import uniform as uniform
from functad.random.keys import draw_key as draw_key
from functad.random.keys import fold_in as fold_in
from functad.random.keys import key as key
from functad.random.keys import seed as seed
from functad.random.keys import split as split
