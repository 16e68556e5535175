"""What to write instead of names that other libraries have, for the errors that miss them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

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
    "partition": "fd.numpy.partition(x, kth), or x.sort()",
    "argpartition": "fd.numpy.argpartition(x, kth), or x.argsort()",
    "compress": "fd.numpy.compress(condition, x, axis), or x[mask]",
    "choose": "fd.numpy.choose(x, choices)",
    "put": "x.at[indices].set(values)",
    "resize": "fd.numpy.resize(x, shape)",
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
    "nelement": "x.size",
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
    "requires_grad_": "x = x.require_grad()",
    "requires_grad": "x.is_require_grad to ask, x = x.require_grad() to set",
    "data": "x.without_autodiff() for its value; to change a parameter model = model.map(lambda p: p - rate * grads[p]), "
    "model.replace({'fc.weight': value}) or model, state = opt.step(model, grads, state)",
    "is_leaf": "x.is_require_grad",
    "grad_fn": "x.is_tracked",
    "detach_": "x = x.detach()",
    "clone": "x itself: tensors are immutable",
    "into_scalar": "x.item()",
    "to_data": "x.numpy()",
    "into_data": "x.numpy()",
    "powf": "x ** y",
    "powi": "x ** y",
    "power": "x ** y",
    "sub_scalar": "x - y",
    "zero_": "x = fd.zeros_like(x); gradients need none, as each backward() returns its own",
    "fill_": "x = fd.full_like(x, value)",
    "normal_": "x = fd.random.normal(key, x.shape) * std + mean",
    "uniform_": "x = fd.random.uniform(key, x.shape)",
    "random_": "x = fd.random.randint(key, x.shape, low, high)",
    "bernoulli_": "x = fd.random.bernoulli(key, p, x.shape)",
    "exponential_": "x = fd.random.exponential(key, x.shape)",
    "index_put_": "x = x.at[indices].set(values)",
    "copy_": "y itself, since tensors are immutable; for a parameter model = model.replace({'fc.weight': y})",
    "addcmul_": "x = x + value * a * b",
    "addcdiv_": "x = x + value * a / b",
    "lerp_": "x = x + weight * (y - x)",
    "fill_diagonal_": "x = fd.where(fd.eye(*x.shape, dtype=bool), value, x)",
    "clamp_": "x = x.clip(min, max)",
    "squeeze_": "x = x.squeeze(axis)",
    "device_put": "x.to_device(device)",
    "devices": "x.device",
    "copy_to_host": "x.numpy()",
    "value": "x.item(), or x.numpy()",
}

_SETTING = {
    "requires_grad": "x = x.require_grad() or x = x.set_require_grad(False), for a model model.freeze('encoder.*'), "
    "model.no_grad() or model.train()",
    "data": "x = x.at[...].set(value), for a parameter model = model.map(lambda p: p - rate * grads[p]), "
    "model.replace({'fc.weight': value}) or model, state = opt.step(model, grads, state)",
}

_SET = {
    "shape": "x = x.reshape(shape)",
    "dtype": "x = x.astype(dtype)",
    "device": "x = x.to_device(device)",
    "T": "x = value.T",
    "mT": "x = value.mT",
    "real": "x = value + 1j * x.imag",
    "imag": "x = x.real + 1j * value",
    "require_grad": "x = x.require_grad()",
    "is_require_grad": "x = x.require_grad(), or x = x.set_require_grad(False)",
    "is_autodiff": "x = x.autodiff(), or x = x.without_autodiff()",
}

_MODULE = {
    "eval": "model = model.valid(), which returns a model",
    "eval_mode": "model = model.valid(), which returns a model",
    "set_attributes": "model = model.valid() or model.train()",
    "state_dict": "model.save(path), or {name: p.numpy() for name, p in [*model.named_parameters(), "
    "*model.named_buffers()]} for the arrays by torch's names",
    "load_state_dict": "model = model.load(weights), a file or a state_dict",
    "cuda": "model = model.fork(fd.Device.gpu())",
    "cpu": "model = model.fork(fd.Device.cpu())",
    "to": "model = model.fork(device) or model = model.astype(dtype)",
    "float": "model = model.astype('float32')",
    "double": "model = model.astype('float64')",
    "half": "model = model.astype('float16')",
    "bfloat16": "model = model.astype('bfloat16')",
    "zero_grad": "nothing: gradients are not accumulated, each backward() returns its own",
    "requires_grad_": "model = model.train() or model = model.no_grad(), or model.freeze('encoder.*') for a part",
    "requires_grad": "model = model.train() or model = model.no_grad(), or model.freeze('encoder.*') for a part",
    "apply": "model(x) (a model holds its parameters), or model = model.map(f) for a function of each parameter",
    "modules": "model.named_modules()",
    "children": "model.named_modules()",
    "named_children": "model.named_modules()",
    "buffers": "model.named_buffers(): tensors in fields that are no Params are buffers",
    "register_buffer": "self.name = tensor: tensors that are no Params are buffers",
    "register_parameter": "self.name = fd.Param(tensor)",
    "register_module": "self.name = module",
    "add_module": "self.name = module",
    "register_forward_hook": "a subclass whose forward calls super().forward(...)",
    "compile": "fd.jit(step), where step takes the model as an argument",
    "init": "the class itself: its __init__ makes the parameters",
    "bind": "model(x): a model holds its parameters",
}

_MODES = "model = model.valid() to evaluate, model = model.train() to train"

_TORCH_NAMES = {
    "functad": {
        **dict.fromkeys(("FloatTensor", "DoubleTensor", "HalfTensor"), "fd.tensor(data, dtype='float32') or the like"),
        **dict.fromkeys(("LongTensor", "IntTensor", "ByteTensor"), "fd.tensor(data, dtype='int32') or the like"),
        "BoolTensor": "fd.tensor(data, dtype=bool)",
        "print": "print(x) in eager code; of a compiled function return the value, and print it outside",
        **{name: f"fd.numpy.{name}" for name in ("nan", "inf", "pi", "e", "linalg", "fft")},
        "config": "fd.enable_x64(), fd.set_default_device(device), and jax.config for what is JAX's",
        "scipy": "fd.special, fd.numpy.linalg, fd.numpy.fft",
        "jax": "import jax; fd.from_jax(f) for a JAX function, x.jax() for an array",
        "autodiff": "x.autodiff(), or device=fd.Device.cpu().autodiff()",
        **dict.fromkeys(("SGD", "Adam", "AdamW", "Optimizer"), "fd.optim.adam(1e-3) or the like"),
        "newaxis": "None, as in x[:, None], or fd.numpy.newaxis",
        "norm": "fd.numpy.linalg.norm(x)",
        "jacobian": "fd.jacrev(f), or fd.jacfwd(f) for more outputs than inputs",
        "Generator": "fd.random.key(seed), given as key= to what draws, or fd.seed(seed)",
        "cat": "fd.concatenate([x, y], axis)",
        "concat": "fd.concatenate([x, y], axis)",
        "mm": "x @ y",
        "bmm": "x @ y",
        "clamp": "x.clip(min, max)",
        "randn": "fd.random.normal(fd.random.key(0), shape)",
        "rand": "fd.random.uniform(fd.random.key(0), shape)",
        "randint": "fd.random.randint(fd.random.key(0), shape, low, high)",
        "randperm": "fd.random.permutation(fd.random.key(0), n)",
        "manual_seed": "fd.seed(0)",
        "from_numpy": "fd.tensor(array)",
        "as_tensor": "fd.tensor(data)",
        "asarray": "fd.tensor(data)",
        "array": "fd.tensor(data)",
        "cuda": "fd.Device.gpu()",
        "devices": "fd.Device.cpu(), fd.Device.gpu(i)",
        "float": "fd.float32",
        "double": "fd.float64",
        "half": "fd.float16",
        "int": "fd.int32",
        "long": "fd.int64",
        "bool": "fd.bool_",
        "inference_mode": "with fd.no_grad():, or model.valid() for a model without dropout",
        "set_grad_enabled": "with fd.no_grad():",
        "enable_grad": "nothing: recording is on outside fd.no_grad()",
        "autograd": "loss.backward(), or fd.grad(f)",
        "func": "fd.vmap, fd.grad, fd.jacrev and so on",
        "compile": "fd.jit(f)",
        "lax": "fd.scan, fd.cond, fd.switch, fd.while_loop, fd.fori_loop",
        "tree_map": "fd.tree.map(f, tree)",
        "tree_util": "fd.tree",
        "utils": "fd.optim.clip_by_norm(1.0) for clip_grad_norm_, fd.checkpoint(f) for utils.checkpoint",
        "remat": "fd.checkpoint(f)",
        "pmap": "fd.vmap(f)",
        "block_until_ready": "x.block_until_ready()",
        "device_put": "x.to_device(device)",
        "custom_gradient": "fd.custom_vjp(f)",
        "DataLoader": "any iterable of batches of arrays",
        "filter_jit": "fd.jit(f), which takes Modules: their static fields are compiled in",
        "filter_grad": "fd.grad(f), which takes Modules",
        "filter_value_and_grad": "fd.value_and_grad(f), which takes Modules",
        "filter_vmap": "fd.vmap(f), which takes Modules",
        "filter": "nothing: a Module is differentiated as it is; model.freeze(pattern) leaves a part out",
        "is_array": "isinstance(x, fd.Tensor)",
        "is_inexact_array": "isinstance(x, fd.Tensor) and model.parameters()",
        "partition": "nothing: transforms take a Module as it is; model.freeze(pattern) leaves a part out",
        "combine": "nothing: transforms take a Module as it is",
        "tree_at": "model = model.replace({'layers.0.weight': value})",
        "tree_serialise_leaves": "fd.save(value, path), or model.save(path)",
        "tree_deserialise_leaves": "fd.load(path, like=value), or model = model.load(path)",
        "apply_updates": "model, state = fd.optim.sgd(0.1).step(model, grads, state), or model.map(lambda p: p - grads[p])",
        "TrainState": "the model and the state of fd.optim: model, state = opt.step(model, grads, state)",
        "Rngs": "fd.random.key(0), and key= where something draws",
        "PRNGKey": "fd.random.key(seed)",
        "eval_shape": "model.summary(x) for a model, or jax.eval_shape(fd.to_jax(f), x)",
        "make_jaxpr": "jax.make_jaxpr(fd.to_jax(f))(x)",
        "disable_jit": "the function without fd.jit: eager code runs ordinary Python",
        "device_get": "x.numpy()",
        "Array": "fd.Tensor",
        "error_if": "an ordinary `if` and `raise` in eager code",
        "debug": "fd.debug_nans() to find NaNs, print(x) in eager code",
        "state": "the model itself, a pytree; model.named_parameters() by name",
        "merge": "the model itself, a pytree",
        "detach": "x.detach()",
        "backward": "loss.backward(), or fd.grad(f)",
        "masked_fill": "x.mask_fill(mask, value), or fd.where(mask, value, x)",
        "masked_select": "x.mask_select(mask), or x[mask]",
        "BALANCED": "fd.GradientCheckpointing.BALANCED, that of device.autodiff().gradient_checkpointing()",
    },
    "functad.nn": {
        "Module": "fd.Module",
        "Parameter": "fd.Param(data)",
        "ParameterList": "a list of Params in a field",
        "ParameterDict": "a dict of Params in a field",
        "ModuleList": "a list of Modules in a field: self.layers = [...]",
        "ModuleDict": "a dict of Modules in a field: self.layers = {...}",
        "utils": "fd.optim.clip_by_norm(1.0) for clip_grad_norm_",
        "SyncBatchNorm": "nn.BatchNorm2d(features)",
        "Dense": "nn.Linear(in_features, out_features)",
        "Conv": "nn.Conv2d(in_channels, out_channels, kernel_size)",
        "BatchNorm": "nn.BatchNorm1d(features), 2d or 3d",
        "compact": "the layers as fields, made in __init__",
        "MLP": "nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))",
        "Rngs": "key=fd.random.key(0)",
        "inference_mode": "model = model.valid()",
        "State": "self.update(name=value) in forward, and y, model = model.call_and_update(x)",
        "make_with_state": "y, model = model.call_and_update(x)",
        "Param": "fd.Param(data)",
        "Variable": "a tensor in a field (a buffer), or fd.Param(data)",
        "jit": "fd.jit(f)",
        "grad": "fd.grad(f)",
        "Optimizer": "opt = fd.optim.adam(1e-3); state = opt.init(model); model, state = opt.step(model, grads, state)",
        "UpsamplingNearest2d": "nn.Upsample(scale_factor=2)",
        "UpsamplingBilinear2d": "nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)",
    },
    "functad.optim": {
        "SGD": "fd.optim.sgd(learning_rate, momentum)",
        "RMSprop": "fd.optim.rmsprop(learning_rate)",
        "LBFGS": "fd.optim.lbfgs()",
        "lr_scheduler": "a schedule as the learning rate: fd.optim.adam(fd.optim.cosine_decay_schedule(1e-3, steps))",
        "clip_grad_norm_": "fd.optim.chain(fd.optim.clip_by_norm(1.0), fd.optim.adam(1e-3))",
        "clip_grad_value_": "fd.optim.chain(fd.optim.clip_by_value(1.0), fd.optim.adam(1e-3))",
        "apply_updates": "model, state = opt.step(model, grads, state)",
        "Optimizer.params": "model, state = opt.step(model, grads, state): the optimiser holds no parameters",
        "Optimizer.update": "model, state = opt.step(model, grads, state)",
        "Optimizer.zero_grad": "nothing: gradients are not accumulated, each backward() returns its own",
        "Optimizer.state_dict": "fd.save(state, path), with the state that opt.init and opt.step return",
        "Optimizer.load_state_dict": "state = fd.load(path, like=opt.init(model))",
        "Optimizer.param_groups": "fd.optim.param_groups((pattern, optimiser), default=...) for groups, "
        "opt.step(..., learning_rate=rate) for another rate",
        "Optimizer.add_param_group": "fd.optim.param_groups((pattern, optimiser), default=...)",
    },
    "functad.nn.init": dict.fromkeys(
        (
            "xavier_uniform_",
            "xavier_normal_",
            "kaiming_uniform_",
            "kaiming_normal_",
            "normal_",
            "uniform_",
            "zeros_",
            "ones_",
            "constant_",
            "orthogonal_",
            "trunc_normal_",
        ),
        "model = model.replace({'fc.weight': nn.init.xavier_uniform(key, shape)}), or the like in __init__",
    ),
    "functad.random": {
        "PRNGKey": "fd.random.key(seed)",
        "randn": "fd.random.normal(key, shape)",
        "rand": "fd.random.uniform(key, shape)",
        "manual_seed": "fd.seed(0)",
        "seed": "fd.seed(0)",
    },
    "functad.tree": {
        "structure": "fd.tree.flatten(tree)[1]",
        "reduce": "functools.reduce(f, fd.tree.leaves(tree))",
        "all": "all(fd.tree.leaves(tree))",
        **dict.fromkeys(("tree_map", "multimap"), "fd.tree.map(f, tree)"),
        **dict.fromkeys(
            ("map_with_path", "flatten_with_path", "leaves_with_path"),
            "fd.tree.paths(tree) beside fd.tree.leaves(tree)",
        ),
        "zeros_like": "fd.tree.map(fd.zeros_like, tree)",
    },
    "functad.numpy": {
        "flatten": "x.reshape(-1)",
        "random": "fd.random, whose functions take a key: fd.random.normal(fd.random.key(0), shape)",
        "cat": "fnp.concatenate([x, y], axis)",
        "logsumexp": "fd.special.logsumexp(x, axis)",
    },
}

PUBLIC = frozenset(
    f"functad.{name}"
    for name in (
        *("errors", "nn", "nn.functional", "nn.init", "numpy", "numpy.fft", "numpy.linalg", "op", "ops", "optim"),
        *("quant", "random", "special", "testing", "tree"),
    )
)
"""The modules that users reach by name; others are files."""

_ELSEWHERE = (
    ("functad", "fd"),
    ("functad.nn.functional", "fd.nn.functional"),
    ("functad.numpy", "fd.numpy"),
    ("functad.special", "fd.special"),
    ("functad.nn", "fd.nn"),
    ("functad.optim", "fd.optim"),
)


def foreign_names(kind: type) -> dict[str, tuple[str, str]]:
    """Names that tensors, of a class, lack, and the texts of the errors for reading and setting them."""
    texts = {name: f"; write {instead}" for name, instead in _INSTEAD.items()}
    methods = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
    known = {name: f"x.{name}(...)" for name in methods} | _INSTEAD
    for name, instead in known.items():
        texts.setdefault(f"{name}_", f"; tensors are immutable: write x = {instead}")
    return {
        name: (
            f"tensors have no attribute {name!r}{text}.",
            f": instead of x.{name} = value write {_SETTING[name]}" if name in _SETTING else "",
        )
        for name, text in texts.items()
        if not hasattr(kind, name)
    }


def settings(kind: type) -> dict[str, str]:
    """The properties of tensors, of a class, and the texts of the errors for setting them; of methods those that are set."""
    names = [name for name in dir(kind) if not name.startswith("_") and isinstance(getattr(kind, name, None), property)]
    return {
        name: f"tensors are immutable: instead of x.{name} = value write {_SET[name]}."
        if name in _SET
        else f"tensors are immutable: x.{name} = value cannot be."
        for name in [*names, "require_grad"]
    }


def missing_part(kind: str, name: str, have: Iterable[str], unfinished: bool) -> UnknownAttributeError:
    """The error for a name that a Module lacks."""
    fields = [n for n in have if not n.startswith("_")]
    if name in _MODULE:
        return UnknownAttributeError(f"{kind} has no attribute {name!r}; write {_MODULE[name]}.")
    when = f", or not yet: assign self.{name} before reading it" if unfinished else ""
    return UnknownAttributeError(
        f"{kind} has no attribute {name!r}{when}; its fields are: {', '.join(fields) or 'none'}."
    )


def setting_part(name: str, fields: Iterable[str]) -> str:
    """What to write instead of assigning to a name of a Module that is made."""
    known = {"training": _MODES, "train": _MODES}.get(name, _MODULE.get(name))
    if name in fields:
        return (
            f"instead of model.{name} = value write model = model.replace({name}=value), or for a part of a part "
            "model = model.replace({'layers.0.weight': value})"
        )
    if known:
        return f"instead of model.{name} = value write {known}"
    near = difflib.get_close_matches(name, list(fields), 1)
    meant = f"did you mean {near[0]!r}" if near else f"its fields are {', '.join(fields) or 'none'}"
    return (
        f"model.{name} = value cannot be, and {name!r} is no field that model.replace could change; {meant}. What a model "
        "has, its class says: fields are assigned in __init__, methods defined"
    )


def missing_name(module: str, name: str, have: Iterable[str] = ()) -> UnknownAttributeError:
    """The error for a name that a module of functad lacks: what to write, where it is, or what is spelled like it."""
    hint, known = "", _TORCH_NAMES.get(module, {})
    if not name.startswith("_"):
        plain = name.rstrip("_")
        where = [there for path, there in _ELSEWHERE if path != module and _has(path, plain)]
        near = difflib.get_close_matches(name, [n for n in have if not n.startswith("_")], n=1, cutoff=0.75)
        if name in known:
            hint = f"; write {known[name]}"
        elif plain != name and plain in have:
            hint = f"; tensors are immutable: write {plain}, which returns a new one"
        elif where:
            hint = f"; it is {where[0]}.{plain}"
        elif near:
            hint = f"; did you mean {near[0]!r}?"
    return UnknownAttributeError(f"{module} has no {name!r}{hint}{'' if hint.endswith('?') else '.'}")


def home_of(name: str) -> str | None:
    """Where a function of a name is here: `fd.special.expit`."""
    found = [there for path, there in _ELSEWHERE if _has(path, name)]
    return f"{found[0]}.{name}" if found else None


def known_name(module: str, name: str) -> str | None:
    """What to write for a name of another library, where that is known."""
    return _TORCH_NAMES.get(module, {}).get(name)


def listed(names: dict[str, Any], *hidden: str) -> list[str]:
    """What `dir` shows of a module: its public names, without the files that they come from."""
    package = names["__name__"]
    return sorted(
        name
        for name, value in names.items()
        if name not in hidden
        and (name.startswith("__") or not name.startswith("_"))
        and not (
            isinstance(value, ModuleType) and value.__name__ == f"{package}.{name}" and value.__name__ not in PUBLIC
        )
        and type(value).__module__ != "__future__"
    )


def _has(module: str, name: str) -> bool:
    found: Any = sys.modules.get(module)
    return found is not None and callable(vars(found).get(name))
