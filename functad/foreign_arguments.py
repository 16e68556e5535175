"""Arguments of other libraries, and what to write here instead; `keywords` makes errors of them."""

from __future__ import annotations

SAME: tuple[tuple[str, ...], ...] = (
    ("a", "x", "input", "tensor", "array", "arr", "data", "m", "z", "ary", "A"),
    ("x1", "x", "a", "input", "input1"),
    ("x2", "y", "b", "other", "input2", "B"),
    ("minval", "low", "min", "lower", "a_min", "min_val"),
    ("maxval", "high", "max", "upper", "a_max", "max_val"),
    ("axis", "dim", "axes", "dims", "axis1"),
    ("keepdims", "keepdim"),
    ("shape", "size", "sample_shape", "normalized_shape", "output_size"),
    ("key", "rng", "rngs", "generator", "prng_key", "seed", "dropout_key"),
    ("logits", "log_probs"),
    ("p", "probs", "prob", "probability", "rate", "q"),
    ("df", "nu", "dof"),
    ("a", "alpha", "concentration", "concentration1", "shape_parameter"),
    ("b", "beta", "concentration0"),
    ("lam", "rate", "mean"),
    ("sigma", "scale", "std", "stddev", "s"),
    ("cov", "covariance", "covariance_matrix"),
    ("mean", "loc", "mu"),
    ("weight", "weights", "w", "kernel", "rhs"),
    ("target", "targets", "labels", "label", "y_true"),
    ("input", "inputs", "x", "logits", "predictions", "preds", "y_pred", "log_predictions", "lhs"),
    ("var", "variance"),
    ("offset", "k", "diagonal"),
    ("k", "offset", "diagonal"),
    ("shift", "shifts"),
    ("indices", "index", "idx"),
    ("values", "source", "src", "v", "value"),
    ("ord", "p", "order"),
    ("stride", "strides", "window_strides"),
    ("kernel_size", "window_shape", "window", "pool_size", "kernel_shape", "kernel"),
    ("dilation", "dilations", "rhs_dilation", "kernel_dilation", "dilation_rate"),
    ("groups", "feature_group_count", "num_groups"),
    ("eps", "epsilon"),
    ("tol", "rtol", "rcond", "hermitian_tol"),
    ("atol", "abs_tol"),
    ("rtol", "rel_tol", "rcond"),
    ("decimals", "digits", "ndigits"),
    ("reps", "repeats", "dims"),
    ("repeats", "reps", "n"),
    ("hermitian", "symmetric"),
    ("arrays", "tensors", "seq", "tup", "xs", "sequence"),
    ("descending", "reverse"),
    ("return_counts", "counts"),
    ("dtype", "dtypes", "type", "preferred_element_type"),
    ("shape", "shapes"),
    ("device", "devices"),
    ("is_leaf", "leaf"),
    ("initial", "init"),
    ("beta", "delta"),
    ("delta", "beta"),
    ("negative_slope", "alpha", "slope"),
    ("approximate", "approx"),
    ("num_classes", "depth", "n_classes"),
    ("scale_factor", "scale"),
    ("mode", "method", "interpolation"),
    ("momentum", "decay"),
    ("attn_mask", "mask", "bias", "attention_mask"),
    ("dropout_p", "dropout_rate", "dropout"),
    ("is_causal", "causal"),
    ("where", "mask", "condition"),
    ("unit_diagonal", "unitriangular", "unit_triangular"),
    ("trans", "transpose", "adjoint", "transpose_a"),
    ("n", "N", "order", "nu"),
    ("std", "stddev", "scale", "sigma"),
    ("mode", "fan"),
)
"""Names of one thing: the first is ours, and where a function has another of them that is meant instead."""

_NO_LAYOUT = "the call without it: channels come before space, (N, C, ...); x.transpose(0, 3, 1, 2) brings NHWC there"
_LAYOUTS = ("data_format", "dimension_numbers", "channels_last", "channel_axis")
_ONE_LOC = "loc + scale * fd.random.{}(key, shape)"

OF: dict[tuple[str, str], str] = {
    ("solve_triangular", "upper"): "lower=False for upper=True (the default), lower=True for upper=False",
    ("cholesky", "lower"): "upper=False for lower=True (the default), upper=True for lower=False",
    ("svd", "some"): "full_matrices=False for some=True, full_matrices=True (the default) for some=False",
    ("svd", "driver"): "the call without it",
    ("qr", "some"): "mode='reduced' for some=True (the default), mode='complete' for some=False",
    ("qr", "full_matrices"): "mode='complete' for full_matrices=True, mode='reduced' (the default) otherwise",
    ("eigh", "lower"): "UPLO='L' for lower=True, UPLO='U' for lower=False",
    ("eigh", "eigvals_only"): "fd.numpy.linalg.eigvalsh(x)",
    ("eigvalsh", "lower"): "UPLO='L' for lower=True, UPLO='U' for lower=False",
    ("pinv", "rtol"): "rcond=",
    ("solve", "assume_a"): "fd.numpy.linalg.cho_solve(fd.numpy.linalg.cho_factor(a), b) for a positive definite matrix",
    ("solve", "left"): "fd.numpy.linalg.solve(a.mT, b.mT).mT for left=False",
    ("inv", "hermitian"): "the call without it",
    ("lu", "pivot"): "the call without it: rows are always interchanged",
    (
        "bessel_jn",
        "v",
    ): "bessel_jn(n, x) for the order n; for all orders up to v fd.stack([bessel_jn(n, x) for n in range(v + 1)])",
    ("bessel_jn", "n_iter"): "the call without it",
    ("categorical", "probs"): "fd.random.categorical(key, fd.numpy.log(probs))",
    ("categorical", "p"): "fd.random.categorical(key, fd.numpy.log(p)), or fd.random.choice(key, len(p), p=p)",
    ("categorical", "num_samples"): "shape=(num_samples,)",
    (
        "multinomial",
        "num_samples",
    ): "fd.random.categorical(key, fd.numpy.log(weights), shape=(num_samples,)) for indices",
    ("bernoulli", "logits"): "p=fd.special.expit(logits)",
    ("gamma", "scale"): "scale * fd.random.gamma(key, a, shape)",
    ("gamma", "rate"): "fd.random.gamma(key, a, shape) / rate",
    ("gamma", "beta"): "fd.random.gamma(key, a, shape) / beta",
    ("exponential", "scale"): "scale * fd.random.exponential(key, shape)",
    **{("exponential", name): f"fd.random.exponential(key, shape) / {name}" for name in ("rate", "lam", "lambd")},
    ("lognormal", "mean"): "fd.numpy.exp(mean) * fd.random.lognormal(key, sigma, shape)",
    ("pareto", "scale"): "scale * fd.random.pareto(key, b, shape)",
    **{("triangular", ours): theirs for ours, theirs in (("low", "left="), ("high", "right="), ("c", "mode="))},
    **{
        (name, given): _ONE_LOC.format(name)
        for name in ("cauchy", "gumbel", "laplace", "logistic", "maxwell")
        for given in ("loc", "scale")
    },
    **{("t", given): "loc + scale * fd.random.t(key, df, shape)" for given in ("loc", "scale")},
    **{
        (
            "truncated_normal",
            given,
        ): "mean + std * fd.random.truncated_normal(key, lower, upper, shape), with bounds in units "
        "of std from the mean"
        for given in ("mean", "std", "loc", "scale", "stddev")
    },
    **{("truncated_normal", given): ours for given, ours in (("a", "lower="), ("b", "upper="), ("minval", "lower="))},
    **{
        (f"{kind}{n}d", name): _NO_LAYOUT
        for kind in ("conv", "conv_transpose", "max_pool", "avg_pool")
        for n in (1, 2, 3)
        for name in _LAYOUTS
    },
    ("interpolate", "data_format"): _NO_LAYOUT,
    **{(f"conv_transpose{n}d", "lhs_dilation"): "stride=" for n in (1, 2, 3)},
    (
        "scaled_dot_product_attention",
        "key",
    ): "dropout_key= for the key that dropout draws with: the second argument is key here",
    **{
        ("cross_entropy", name): f"F.cross_entropy(input, target), where input is the {what}"
        for name, what in (("from_logits", "logits"), ("axis", "logits with classes in axis 1"))
    },
    ("one_hot", "axis"): "fd.numpy.moveaxis(F.one_hot(x, num_classes), -1, axis)",
    ("layer_norm", "axis"): "normalized_shape=x.shape[-1:], the lengths of the last axes",
    ("tensors", "dtypes"): "dtype=, one dtype",
    ("full", "value"): "fill_value=",
    ("add", "alpha"): "x + alpha * y",
    ("sub", "alpha"): "x - alpha * y",
    ("div", "rounding_mode"): "x // y for 'floor', (x / y).trunc() for 'trunc'",
    **{
        (name, "is_leaf"): "jax.tree.map(f, tree, is_leaf=...), to which tensors are leaves"
        for name in ("map", "leaves", "flatten", "paths")
    },
    ("arange", "end"): "fd.arange(start, stop, step) by position",
    ("linspace", "steps"): "num=",
    ("linspace", "end"): "stop=",
    ("eye", "M"): "fd.eye(n, m) by position",
    ("split", "split_size_or_sections"): "indices_or_sections=, a number of parts or the places of the cuts",
    ("split", "split_size"): "indices_or_sections=, a number of parts or the places of the cuts",
    ("save", "weights_only"): "the call without it",
    ("load", "weights_only"): "the call without it: nothing is unpickled",
    ("load", "map_location"): "device=, where the function has it, or model.fork(device)",
    ("einsum", "preferred_element_type"): "x.astype(dtype) of the operands or the result",
    **{
        (name, "precision"): "the call without it, or jax.config for XLA's"
        for name in ("matmul", "dot", "einsum", "tensordot", "vdot", "inner")
    },
    **{
        (name, "preferred_element_type"): "x.astype(dtype) of an input or the result"
        for name in ("matmul", "dot", "tensordot", "vdot", "inner")
    },
    **{(name, "where"): "fd.where(mask, x, 0) and the like as the input" for name in ("norm", "cumsum", "cumprod")},
}
"""What holds for one function alone."""
