"""What to write instead of names that other libraries have, for the errors that miss them."""

from __future__ import annotations

from functad.errors import UnknownAttributeError

_INSTEAD = {
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)",
    "reshape_as": "x.reshape(y.shape)",
    "unsqueeze": "x.expand_dims(axis), or x[:, None]",
    "unsqueeze_dim": "x.expand_dims(axis)",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)",
    "t": "x.T",
    "adjoint": "x.mT.conj()",
    "swap_dims": "x.swapaxes(axis1, axis2)",
    "movedim": "fd.numpy.moveaxis(x, source, destination)",
    "contiguous": "x itself: tensors have no strides",
    "chunk": "x.split(sections, axis)",
    "narrow": "a slice, such as x[:, start:stop]",
    "slice_assign": "x.at[i:j].set(v)",
    "index_select": "x.take(indices, axis)",
    "select": "an index, such as x[:, i]",
    "masked_fill": "x.mask_fill(mask, value)",
    "mask_where": "fd.where(mask, y, x)",
    "masked_select": "x.mask_select(mask), or x[mask]",
    "scatter_add": "x.scatter(axis, indices, values, reduce='add')",
    "scatter_": "x.scatter(axis, indices, values)",
    "clamp": "x.clip(min, max)",
    "clamp_min": "x.clip(min=value)",
    "clamp_max": "x.clip(max=value)",
    "mm": "x @ y",
    "bmm": "x @ y",
    "mv": "x @ y",
    "eq": "x == y",
    "ne": "x != y",
    "lt": "x < y",
    "le": "x <= y",
    "gt": "x > y",
    "ge": "x >= y",
    "dim": "x.ndim",
    "numel": "x.size",
    "num_elements": "x.size",
    "element_size": "x.itemsize",
    "dims": "x.shape",
    "to": "x.to_device(device) or x.astype(dtype)",
    "cpu": "x.to_device(fd.Device.cpu())",
    "cuda": "x.to_device(fd.Device.gpu())",
    "float": "x.astype('float32')",
    "double": "x.astype('float64')",
    "half": "x.astype('float16')",
    "bfloat16": "x.astype('bfloat16')",
    "int": "x.astype('int32')",
    "long": "x.astype('int64')",
    "bool": "x.astype(bool)",
    "type": "x.astype(dtype)",
    "cast": "x.astype(dtype)",
    "requires_grad": "x.is_require_grad to ask, x = x.require_grad() to set",
    "requires_grad_": "x = x.require_grad()",
    "is_leaf": "x.is_require_grad",
    "grad_fn": "x.is_tracked",
    "data": "x.without_autodiff()",
    "detach_": "x = x.detach()",
    "clone": "x itself: tensors are immutable",
    "into_scalar": "x.item()",
    "to_data": "x.numpy()",
    "into_data": "x.numpy()",
    "powf": "x ** y",
    "powi": "x ** y",
    "power": "x ** y",
    "sub_scalar": "x - y",
    "zero_": "nothing: gradients are not accumulated, each backward() returns its own",
    "device_put": "x.to_device(device)",
    "devices": "x.device",
    "copy_to_host": "x.numpy()",
    "value": "x.item(), or x.numpy()",
}


def missing_attribute(name: str) -> UnknownAttributeError:
    """The error for a name that tensors lack; what it is called here, where that is known."""
    hint = ""
    if name in _INSTEAD:
        hint = f"; write {_INSTEAD[name]}"
    elif name.endswith("_") and not name.startswith("_"):
        hint = f"; tensors are immutable: write x = x.{name.rstrip('_')}(...)"
    return UnknownAttributeError(f"tensors have no attribute {name!r}{hint}.")
