"""The safetensors format, and writing that a crash cannot spoil.

A file is the length of a header, the header (JSON: names, dtypes, shapes, places), and the bytes of
the tensors. A checksum of each tensor is in the header's metadata.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import secrets
import time
import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from functad.errors import RecordError

Array = np.ndarray[Any, Any]

_CODES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "C64": np.complex64,
}  # fmt: skip
_DTYPES = {code: np.dtype(kind) for code, kind in _CODES.items()}
_NAMES = {dtype: code for code, dtype in _DTYPES.items()}
_TORCH = "write model = model.load(torch.load(path, weights_only=True)), or convert it with safetensors.torch.save_file"
_FOREIGN = (
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save and numpy.savez write",
        f"{_TORCH}; for NumPy's, dict(numpy.load(path))",
    ),
    (b"\x89HDF", "an HDF5 file", "read it with h5py and pass a dict of arrays: model = model.load(arrays)"),
    (b"\x93NUMPY", "a file of numpy.save", "read it with numpy.load(path)"),
    (b"\x80", "a pickle", f"{_TORCH}, or pickle.load for a pickle of your own"),
)
"""How files of other libraries start, what they are, and how they are read."""
_ABANDONED = 3600  # seconds
_MOST_HEADER = 100_000_000
_OURS = "functad"
_METADATA = "__metadata__"
_VERSION = 2


def write(path: Any, arrays: Mapping[str, Array], about: Mapping[str, Any] | None = None) -> None:
    """Write arrays to a file: complete, or not at all.

    `about` is kept in the metadata as JSON. The bytes go to a new file beside `path`, are flushed to
    the disk, and only then take the place of the old file.
    """
    header: dict[str, Any] = {}
    views: dict[str, str] = {}
    sums: dict[str, int] = {}
    flat: list[memoryview] = []
    place = 0
    if _METADATA in arrays:
        raise RecordError(f"save: safetensors files keep the name {_METADATA!r} for themselves; choose another.")
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):  # aligned
        code = _NAMES.get(array.dtype)
        shape = list(array.shape)
        contiguous = np.ascontiguousarray(array)
        if not contiguous.dtype.isnative:
            contiguous = contiguous.astype(contiguous.dtype.newbyteorder("="))
        if code is None:  # dtypes the format lacks, as bytes
            code, shape = "U8", [*shape, array.dtype.itemsize]
            views[name] = array.dtype.name
        raw = contiguous.reshape(-1).view(np.uint8).data
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [place, place + raw.nbytes]}
        sums[name] = zlib.crc32(raw)
        flat.append(raw)
        place += raw.nbytes
    ours = {"version": _VERSION, "crc32": sums, "views": views, **(about or {})}
    ours["header"] = _sum_of(header, ours)
    header[_METADATA] = {"format": _OURS, _OURS: json.dumps(ours)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for raw in flat:
            file.write(raw)


def _sum_of(entries: Any, about: dict[str, Any]) -> int:
    """The checksum of a header: of the entries and of functad's metadata without it."""
    rest = {name: x for name, x in about.items() if name != "header"}
    return zlib.crc32(json.dumps([entries, rest], sort_keys=True).encode())


@contextlib.contextmanager
def replacing(path: Any) -> Any:
    """A file that takes the place of `path` when the block ends well, and leaves no trace when it does not."""
    target = Path(os.path.realpath(path))  # the file a link points to, not the link
    if target.is_dir():
        raise RecordError(f"{target} is a folder; give the name of a file in it.")
    if not target.parent.is_dir():
        raise RecordError(f"there is no folder {target.parent}; make it first: path.parent.mkdir(parents=True).")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with open(beside, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            with contextlib.suppress(OSError):
                os.chmod(beside, target.stat().st_mode & 0o7777)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    _sync_folder(target.parent)
    _clear(target)


def _clear(target: Path) -> None:
    """Remove what writers that were killed left of this file: nothing was added to it for an hour."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the new name last, where the system can say so."""
    with contextlib.suppress(OSError):  # folders cannot be opened on Windows
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Reader:
    """A file whose header has been checked; arrays are read one by one.

    The file stays open, so that the arrays are those of one file, whatever takes its place meanwhile.
    """

    def __init__(self, path: Any):
        self.path = Path(path)
        try:
            self._file = open(self.path, "rb")  # noqa: SIM115  # closed with the reader
            weakref.finalize(self, self._file.close)
            size = os.fstat(self._file.fileno()).st_size
            self._start, self._entries, self.about = _header(self.path, self._file, size)
        except FileNotFoundError:
            raise RecordError(f"there is no file {self.path}.") from None
        except IsADirectoryError:
            raise RecordError(f"{self.path} is a folder, not a file.") from None
        self._sums: dict[str, int] = self.about.get("crc32", {})
        self._views: dict[str, str] = self.about.get("views", {})

    def names(self) -> list[str]:
        """The names of its arrays."""
        return list(self._entries)

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        self._file.seek(self._start + begin)
        raw = self._file.read(end - begin)
        if len(raw) < end - begin:
            raise _spoilt(self.path, f"it ends within {name!r}")
        if name in self._sums and zlib.crc32(raw) != self._sums[name]:
            raise _spoilt(self.path, f"the bytes of {name!r} are not those that were written")
        shape = entry["shape"]
        dtype = _DTYPES[entry["dtype"]]
        if name in self._views:
            shape, dtype = shape[:-1], np.dtype(self._views[name])
        return np.frombuffer(raw, dtype).reshape(shape)

    def arrays(self) -> dict[str, Array]:
        """All of them."""
        return {name: self[name] for name in self._entries}


def _header(path: Path, file: IO[bytes], size: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Where the bytes start, what is where, and functad's own metadata."""
    head = file.read(8)
    if len(head) < 8:
        raise _spoilt(path, f"it has {size} bytes, too few for a header")
    length = int.from_bytes(head, "little")
    if length > _MOST_HEADER or length < 2:
        for start, kind, how in _FOREIGN:  # the length of a header may begin like this too
            if head.startswith(start):
                raise RecordError(f"{path} is {kind}, not a safetensors file; {how}.")
        raise _spoilt(path, "it does not start as a safetensors file does")
    if 8 + length > size:
        raise _spoilt(path, f"its header should have {length} bytes, and the file has {size} in all")
    try:
        header = json.loads(file.read(length))
        metadata = header.pop(_METADATA, {}) or {}
        about = json.loads(metadata.get(_OURS, "{}"))
        complete = about.get("header") == _sum_of(header, about) if about else metadata.get("format") != _OURS
        entries = {name: _entry(name, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _spoilt(path, f"its header cannot be read ({error})") from None
    if not complete:
        raise _spoilt(path, "its header is not the one that was written")
    place = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != place:
            raise _spoilt(path, f"{name!r} starts at byte {begin} of the data, where byte {place} is next")
        place = end
    if 8 + length + place != size:
        raise _spoilt(
            path,
            f"it should have {8 + length + place} bytes, and has {size}"
            + (" (cut short)" if size < 8 + length + place else ""),
        )
    return 8 + length, entries, about


def _entry(name: str, entry: Any) -> Any:
    code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if code not in _DTYPES:
        raise ValueError(f"{name!r} has the dtype {code!r}, which functad does not know")
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"{name!r} has a shape or place that is no number")
    if end - begin != math.prod(shape) * _DTYPES[code].itemsize:
        raise ValueError(f"{name!r} is {code}{shape} in {end - begin} bytes")
    return entry


def _spoilt(path: Path, what: str) -> RecordError:
    return RecordError(
        f"{path} is corrupt, or no safetensors file: {what}. Nothing was loaded; use another copy of the file."
    )
