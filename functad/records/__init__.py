"""Files: any pytree (`save`, `load`), and the tensors of Modules by name (`Module.save`, `Module.load`)."""

from functad.records.structure import load as load
from functad.records.structure import save as save
from functad.records.weights import LoadReport as LoadReport
from functad.records.weights import load_into as load_into
