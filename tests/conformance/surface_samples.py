"""Calls of the functions that PyTorch lets a subclass override and that its operator database does not name.

`SAMPLES` has for each name (as `torch.overrides.resolve_name` gives it) calls with their arguments; `EXCLUDED` the
names left out, each with the reason. `test_surface.py` checks that nothing is missing from both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
SAMPLES: dict[str, list[Call]] = {}


def add(names: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """A call that stands for these names (blank-separated)."""
    for name in names.split():
        SAMPLES.setdefault(name, []).append((function, args, kwargs))


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers that take a gradient."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def plain(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers without a gradient."""
    return floats(*shape, seed=seed).detach()


def probabilities(*shape: int) -> torch.Tensor:
    """Numbers between 0 and 1."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(3))


def numbers(high: int, *shape: int, seed: int = 1) -> torch.Tensor:
    """Random integers."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


X, Y = floats(7, 4), floats(7, 4, seed=5)
P, Q = plain(7, 4), plain(7, 4, seed=6)
IMAGES, SEQUENCE, VOLUME = floats(5, 3, 8, 8), floats(5, 4, 6), floats(3, 2, 6, 6, 6)
COUNTS, MORE_COUNTS = numbers(9, 7, 4), numbers(5, 7, 4, seed=2)
MASK = P > 0


def _in_torch() -> None:
    t = torch
    for name in "relu selu celu detach detach_copy sigmoid numel is_complex is_floating_point is_signed".split():
        add(f"torch.{name}", getattr(t, name), X)
    for name in "is_conj is_neg is_inference is_distributed get_device dequantize".split():
        add(f"torch.{name}", getattr(t, name), P)
    add("torch.is_nonzero", t.is_nonzero, plain(1, 1))
    add("torch.is_nonzero", t.is_nonzero, P)
    add("torch.is_same_size", t.is_same_size, P, Q)
    add("torch.threshold", t.threshold, X, 0.1, 2.0)
    add("torch.polygamma torch.special.polygamma", t.polygamma, 1, X.detach().abs() + 1)
    add("torch.where", t.where, MASK)
    add("torch.where", t.where, MASK, X, Y)
    add("torch.slogdet", t.slogdet, floats(5, 3, 3))
    add("torch.select_copy", t.select_copy, X, 0, 2)
    add("torch.slice_copy", t.slice_copy, X, 0, 1, 5)
    add("torch.slice_inverse", t.slice_inverse, P[1:5].clone(), P, 0, 1, 5)
    add("torch.split_copy", t.split_copy, X, 3)
    add("torch.unsafe_split_with_sizes", t.unsafe_split_with_sizes, X, [3, 4])
    add("torch.view_as_real_copy", t.view_as_real_copy, t.complex(P, Q))
    add("torch.view_as_complex_copy", t.view_as_complex_copy, floats(7, 4, 2))
    add("torch.norm_except_dim", t.norm_except_dim, X, 2, 0)
    add("torch.native_norm", t.native_norm, P)
    add("torch.frobenius_norm", t.frobenius_norm, X, [1])
    add("torch.nuclear_norm", t.nuclear_norm, X)
    add("torch.functional.chain_matmul", t.chain_matmul, X, floats(4, 3), floats(3, 5))
    add("torch.functional.einsum", t.einsum, "ij,kj->ik", X, Y)
    add("torch.functional.einsum", t.einsum, "ij,ij->i", X, Y)
    add("torch.lobpcg", lambda a: t.lobpcg(a @ a.t() + 9 * t.eye(9), k=1, niter=30)[0], plain(9, 9))
    add("torch.functional.pca_lowrank", lambda a: t.pca_lowrank(a, 2)[1], plain(7, 4))
    add("torch.functional.svd_lowrank", lambda a: t.svd_lowrank(a, 2)[1], plain(7, 4))


def _random() -> None:
    t = torch
    for name in "alpha_dropout dropout feature_alpha_dropout feature_dropout".split():
        add(f"torch.{name}", getattr(t, name), X, 0.5, True)
    add("torch.native_dropout", t.native_dropout, X, 0.5, True)
    add("torch.rrelu", t.rrelu, X, 0.1, 0.3, True)
    add("torch.bernoulli", t.bernoulli, probabilities(7, 4))
    add("torch.binomial", t.binomial, COUNTS.float(), probabilities(7, 4))
    add("torch.poisson", t.poisson, COUNTS.float())
    add("torch.multinomial torch.Tensor.multinomial", t.multinomial, probabilities(7, 4), 3)
    for name in "dropout alpha_dropout feature_alpha_dropout".split():
        add(f"torch.nn.functional.{name}", getattr(F, name), X, 0.5, True)
    add("torch.nn.functional.dropout1d", F.dropout1d, SEQUENCE)
    add("torch.nn.functional.dropout2d", F.dropout2d, IMAGES)
    add("torch.nn.functional.dropout3d", F.dropout3d, VOLUME)
    add("torch.nn.functional.dropout", F.dropout, X, 0.5, False)
    add("torch.nn.functional.rrelu", F.rrelu, X, 0.1, 0.3, True)
    add("torch.nn.functional.gumbel_softmax", F.gumbel_softmax, X)
    add("torch.nn.functional.gumbel_softmax", lambda x: F.gumbel_softmax(x, hard=True), X)


def _layers() -> None:
    t = torch
    weight, bias = floats(3, 4, 2), floats(3)
    add("torch.conv_tbc torch.nn.functional.conv_tbc", t.conv_tbc, floats(6, 5, 4), floats(3, 4, 2), floats(2), 1)
    add("torch.convolution", t.convolution, SEQUENCE, weight, bias, [1], [0], [1], False, [0], 1)
    add(
        "torch.batch_norm", t.batch_norm, IMAGES, floats(3), floats(3), plain(3), plain(3).abs(), True, 0.1, 1e-5, False
    )
    add("torch.batch_norm", t.batch_norm, IMAGES, None, None, plain(3), plain(3).abs(), False, 0.1, 1e-5, False)
    add("torch.instance_norm", t.instance_norm, IMAGES, None, None, None, None, True, 0.1, 1e-5, False)
    add("torch.native_channel_shuffle", t.native_channel_shuffle, floats(5, 4, 3, 3), 2)
    add("torch.nn.functional.native_channel_shuffle", F.native_channel_shuffle, floats(5, 4, 3, 3), 2)
    add("torch.embedding", t.embedding, floats(9, 3), COUNTS)
    add("torch.nn.functional.embedding", F.embedding, COUNTS, floats(9, 3))
    add("torch.embedding_bag", t.embedding_bag, floats(9, 3), numbers(9, 8), t.tensor([0, 3, 5]))
    add("torch.nn.functional.embedding_bag", F.embedding_bag, COUNTS, floats(9, 3))
    theta = floats(5, 2, 3)
    add("torch.affine_grid_generator", t.affine_grid_generator, theta, [5, 3, 4, 4], False)
    add("torch.nn.functional.affine_grid", F.affine_grid, theta, [5, 3, 4, 4], False)
    add("torch.grid_sampler", t.grid_sampler, IMAGES, floats(5, 4, 4, 2, seed=8), 0, 0, False)
    add("torch.nn.functional.fold", F.fold, floats(5, 12, 9), (4, 4), 2)
    gates = [floats(12, 4), floats(12, 3), floats(12), floats(12)]
    add("torch.lstm_cell", t.lstm_cell, X, (floats(7, 3), floats(7, 3)), *gates)
    gates = [floats(9, 4), floats(9, 3), floats(9), floats(9)]
    add("torch.gru_cell", t.gru_cell, X, floats(7, 3), *gates)
    gates = [floats(3, 4), floats(3, 3), floats(3), floats(3)]
    add("torch.rnn_relu_cell", t.rnn_relu_cell, X, floats(7, 3), *gates)
    add("torch.rnn_tanh_cell", t.rnn_tanh_cell, X, floats(7, 3), *gates)
    _recurrent()
    attention = F.scaled_dot_product_attention
    heads = [floats(5, 2, 6, 4, seed=n) for n in range(3)]
    add("torch.nn.functional.scaled_dot_product_attention", attention, *heads)
    add("torch.nn.functional.scaled_dot_product_attention", lambda *a: attention(*a, is_causal=True), *heads)

    def attend(q: Any, k: Any, v: Any) -> Any:
        projections = (floats(12, 4), floats(12), None, None, False, 0.0, floats(4, 4), floats(4))
        return F.multi_head_attention_forward(q, k, v, 4, 2, *projections)

    add("torch.nn.functional.multi_head_attention_forward", attend, *[floats(6, 5, 4, seed=n) for n in range(3)])


def _recurrent() -> None:
    t = torch
    for name, gates in (("gru", 3), ("rnn_relu", 1), ("rnn_tanh", 1)):
        weights = [floats(gates * 3, 4), floats(gates * 3, 3), floats(gates * 3), floats(gates * 3)]
        function = getattr(t, name)
        add(f"torch.{name}", function, floats(5, 6, 4), floats(1, 5, 3), weights, True, 1, 0.0, False, False, True)
    weights = [floats(12, 4), floats(12, 3), floats(12), floats(12)]
    state = (floats(1, 5, 3), floats(1, 5, 3))
    add("torch.lstm", t.lstm, floats(5, 6, 4), state, weights, True, 1, 0.0, False, False, True)
    add("torch.lstm", t.lstm, floats(6, 5, 4), state, weights, True, 1, 0.0, False, False, False)


def _pooling() -> None:
    t = torch
    flat = (SEQUENCE, IMAGES, VOLUME)
    add("torch.adaptive_max_pool1d", t.adaptive_max_pool1d, SEQUENCE, 2)
    add("torch.max_pool1d_with_indices", t.max_pool1d_with_indices, SEQUENCE, 2)
    for n in (1, 2, 3):
        add(f"torch.max_pool{n}d", getattr(t, f"max_pool{n}d"), flat[n - 1], 2)
        add(f"torch.nn.functional.max_pool{n}d_with_indices", getattr(F, f"max_pool{n}d_with_indices"), flat[n - 1], 2)
        add(f"torch.nn.functional.lp_pool{n}d", getattr(F, f"lp_pool{n}d"), flat[n - 1].detach().abs(), 2.0, 2)
        name = f"adaptive_max_pool{n}d_with_indices"
        add(f"torch.nn.functional.{name}", getattr(F, name), flat[n - 1], 2)
    for n in (2, 3):
        samples = probabilities(len(flat[n - 1]), flat[n - 1].size(1), n)
        for suffix in ("", "_with_indices"):
            name = f"fractional_max_pool{n}d{suffix}"

            def pool(x: Any, drawn: Any, function: Any = getattr(F, name)) -> Any:
                return function(x, 2, output_size=2, _random_samples=drawn)

            add(f"torch.nn.functional.{name}", pool, flat[n - 1], samples)


def _losses() -> None:
    t = torch
    sign = P.sum(1).sign()
    for reduction in (0, 1, 2):
        add(
            "torch.binary_cross_entropy_with_logits",
            t.binary_cross_entropy_with_logits,
            X,
            MASK.float(),
            None,
            None,
            reduction,
        )
        add("torch.cosine_embedding_loss", t.cosine_embedding_loss, X, Y, sign, 0.1, reduction)
        add("torch.hinge_embedding_loss", t.hinge_embedding_loss, X, P.sign(), 1.0, reduction)
        add("torch.kl_div", t.kl_div, X, probabilities(7, 4), reduction)
        add("torch.margin_ranking_loss", t.margin_ranking_loss, X, Y, P.sign(), 0.1, reduction)
        add("torch.poisson_nll_loss", t.poisson_nll_loss, X, COUNTS.float(), True, False, 1e-8, reduction)
        add(
            "torch.triplet_margin_loss",
            t.triplet_margin_loss,
            X,
            Y,
            floats(7, 4, seed=9),
            1.0,
            2,
            1e-6,
            False,
            reduction,
        )
    log_probabilities = F.log_softmax(floats(6, 5, 4), 2).detach()
    lengths = (t.tensor([6, 5, 6, 4, 6]), t.tensor([2, 1, 3, 2, 1]))
    add("torch.ctc_loss", t.ctc_loss, log_probabilities, numbers(3, 5, 3) + 1, *lengths)
    scale, zero = t.full((4,), 0.1), t.zeros(4)
    add("torch.fake_quantize_per_channel_affine", t.fake_quantize_per_channel_affine, X, scale, zero, 1, 0, 255)
    add("torch.fake_quantize_per_tensor_affine", t.fake_quantize_per_tensor_affine, X, 0.1, 0, 0, 255)


_OPERATORS = {
    "__add__ __radd__": operator.add, "__sub__ __rsub__": operator.sub, "__mul__ __rmul__": operator.mul,
    "__truediv__ __div__ __rtruediv__ __rdiv__": operator.truediv, "__floordiv__ __rfloordiv__": operator.floordiv,
    "__mod__ __rmod__": operator.mod, "__eq__": operator.eq, "__ne__": operator.ne, "__lt__": operator.lt,
    "__le__": operator.le, "__gt__": operator.gt, "__ge__": operator.ge,
}  # fmt: skip
_ON_INTEGERS = {
    "__and__ __rand__": operator.and_, "__or__ __ror__": operator.or_, "__xor__ __rxor__": operator.xor,
    "__lshift__ __rlshift__": operator.lshift, "__rshift__ __rrshift__": operator.rshift,
}  # fmt: skip
_IN_PLACE = {
    "__iadd__": operator.iadd, "__isub__": operator.isub, "__imul__": operator.imul, "__itruediv__": operator.itruediv,
    "__idiv__": operator.itruediv, "__ifloordiv__": operator.ifloordiv, "__imod__": operator.imod,
}  # fmt: skip
_IN_PLACE_ON_INTEGERS = {
    "__iand__": operator.iand, "__ior__": operator.ior, "__ixor__": operator.ixor,
    "__ilshift__": operator.ilshift, "__irshift__": operator.irshift,
}  # fmt: skip


def methods(names: str) -> str:
    """The full names of methods."""
    return " ".join(f"torch.Tensor.{name}" for name in names.split())


def _operators() -> None:
    for names, function in _OPERATORS.items():
        add(methods(names), function, X, Y)
        add(methods(names), lambda x, f=function: f(x, 2.5), X)
        add(methods(names), lambda x, f=function: f(2.5, x), X)
    for names, function in _ON_INTEGERS.items():
        add(methods(names), function, COUNTS, MORE_COUNTS)
        add(methods(names), lambda x, f=function: f(x, 2), COUNTS)
        add(methods(names), lambda x, f=function: f(2, x), MORE_COUNTS)
    for names, function in _IN_PLACE.items():
        add(methods(names), function, P, Q)
        add(methods(names), lambda x, f=function: f(x, 2.5), P)
    for names, function in _IN_PLACE_ON_INTEGERS.items():
        add(methods(names), function, COUNTS, MORE_COUNTS)
    add(methods("__pow__ __rpow__"), operator.pow, X.detach().abs(), Y)
    add(methods("__pow__"), lambda x: x**2, X)
    add(methods("__rpow__"), lambda x: 2.0**x, X)
    add(methods("__ipow__"), operator.ipow, P.abs(), Q)
    add(methods("__matmul__ __rmatmul__"), operator.matmul, X, floats(4, 3))
    add(methods("__imatmul__"), lambda x, w: x @ w, P, plain(4, 4))
    add(methods("__invert__"), operator.invert, COUNTS)
    add(methods("__neg__ __pos__ __abs__"), lambda x: (-x, +x, abs(x)), X)


def _python() -> None:
    one = plain(1, 1)
    for names, function in {"__bool__ __nonzero__": bool, "__float__": float, "__complex__": complex}.items():
        add(methods(names), function, one)
        add(methods(names), function, P)
    add(methods("__int__ __long__"), int, numbers(9, 1))
    add(methods("__index__"), lambda x: [5, 6, 7][x], numbers(3, 1))
    add(methods("__index__"), operator.index, P)
    add(methods("__contains__"), lambda x: (3 in x, 99 in x), COUNTS)
    add(methods("__len__"), len, P)
    add(methods("__iter__ __reversed__"), lambda x: (list(x), list(reversed(x))), X)
    add(methods("__array__ numpy"), lambda x: x.numpy().tolist(), P)
    add(methods("numpy"), lambda x: x.numpy(force=True).tolist(), X)
    add(methods("numpy"), lambda x: x.numpy(), X)
    add(methods("__array_wrap__"), lambda x: torch.as_tensor(_numpy().sin(x)), P)
    add(methods("__format__"), lambda x: f"{x.sum():.3f}", P)
    add(methods("__repr__"), repr, COUNTS)
    add(methods("__dlpack__ __dlpack_device__"), torch.from_dlpack, P)
    add(methods("__deepcopy__"), _copied, P)
    add(methods("__reduce_ex__ __setstate__"), _pickled, P)
    add(methods("__setitem__"), _set, P)
    add(methods("item"), lambda x: x.sum().item(), COUNTS)
    add(methods("item"), lambda x: x.item(), P)
    add(methods("tolist"), lambda x: x.tolist(), P)
    add(methods("is_set_to"), lambda x, y: x.is_set_to(y), P, Q)


def _numpy() -> Any:
    import numpy

    return numpy


def _copied(x: Any) -> Any:
    import copy

    return copy.deepcopy(x), copy.copy(x)


def _pickled(x: Any) -> Any:
    import pickle

    return pickle.loads(pickle.dumps(x))


def _set(x: Any) -> Any:
    x[1] = 0.5
    x[2:5, 1] = 7
    x[x > 0.4] = -1
    return x


def _methods() -> None:
    for name in "cpu detach contiguous numel nelement ndimension dim is_complex is_contiguous type".split():
        add(methods(name), lambda x, n=name: getattr(x, n)(), X)
    for name in (
        "element_size is_conj is_distributed is_floating_point is_inference is_neg is_pinned is_shared is_signed "
        "is_coalesced storage_offset dense_dim sparse_dim _is_view dequantize get_device to_dense _to_dense "
        "_nnz _indices _values coalesce indices values int_repr qscheme q_scale crow_indices dim_order"
    ).split():
        add(methods(name), lambda x, n=name: str(r) if not isinstance(r := getattr(x, n)(), torch.Tensor) else r, P)
    add(methods("is_nonzero"), lambda x: x.is_nonzero(), plain(1, 1))
    add(methods("is_same_size"), lambda x, y: x.is_same_size(y), P, Q)
    add(methods("size"), lambda x: (x.size(), x.size(0), x.size(-1)), P)
    for name in ("relu", "hardshrink"):
        add(methods(name), lambda x, n=name: getattr(x, n)(), X)
    add(methods("relu_ detach_"), lambda x: (x.relu_(), x.detach_()), P)
    add(methods("prelu"), lambda x, w: x.prelu(w), X, floats(4))
    add(methods("slogdet"), lambda x: x.slogdet(), floats(5, 3, 3))
    add(methods("type_as"), lambda x, y: x.type_as(y), X, COUNTS)
    add(methods("type"), lambda x: x.type(torch.float64), X)
    add(methods("copy_"), lambda x, y: x.copy_(y), P, X)
    add(methods("fill_diagonal_"), lambda x: x.fill_diagonal_(3.0), P)
    add(methods("index"), lambda x, i: torch.ops.aten.index(x, [i]), X, numbers(7, 3))
    add(methods("slice_inverse"), lambda x, y: x.slice_inverse(y, 0, 1, 5), P[1:5].clone(), P)
    add(methods("unsafe_split_with_sizes"), lambda x: x.unsafe_split_with_sizes([3, 4]), X)
    add(methods("requires_grad_"), lambda x: (x.requires_grad_() * 2).requires_grad, P)
    add(methods("bernoulli"), lambda x: x.bernoulli(), probabilities(7, 4))
    add(methods("bernoulli_"), lambda x: x.bernoulli_(0.4), P)
    add(methods("random_"), lambda x: x.random_(0, 9), P)
    add(methods("apply_"), lambda x: x.apply_(lambda v: v * 2 + 1), P)
    add(methods("map_"), lambda x, y: x.map_(y, lambda a, b: a - 2 * b), P, Q)
    add(methods("map2_"), lambda x, y: x.map2_(y, y, lambda a, b, c: a - b * c), P, Q)
    add(methods("share_memory_"), lambda x: x.share_memory_(), P)
    add(methods("sparse_mask"), lambda x, y: x.sparse_mask((y > 0).float().to_sparse()), P, Q)
    add(methods("resize resize_as"), lambda x: x.resize(4, 7), P)
    add(methods("backward"), _backward, floats(7, 4))
    add(methods("register_hook retain_grad"), _hooked, floats(7, 4))
    add(methods("register_post_accumulate_grad_hook"), _post_hook, floats(7, 4))


def _backward(x: Any) -> Any:
    x.backward(torch.full((7, 4), 0.5))
    return x.detach()


def _hooked(x: Any) -> Any:
    seen: list[Any] = []
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: seen.append(g * 1) or g * 3)
    (y**2).sum().backward()
    return [torch.as_tensor(s) for s in seen], y.grad


def _post_hook(x: Any) -> Any:
    seen: list[Any] = []
    leaf = x.detach().requires_grad_()
    leaf.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad * 1))
    (leaf**2).sum().backward()
    return seen


def _properties() -> None:
    for name in (
        "T H mT mH real data shape dtype device ndim layout itemsize nbytes requires_grad is_leaf grad _grad grad_fn "
        "_grad_fn name output_nr retains_grad volatile is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia "
        "is_nested is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu _backward_hooks "
        "_post_accumulate_grad_hooks grad_dtype _base"
    ).split():
        key = f"torch.Tensor.{name}.__get__"
        add(key, lambda x, n=name: r if isinstance(r := getattr(x, n), torch.Tensor) else str(r), P)
    add("torch.Tensor.imag.__get__", lambda x: (x.real, x.imag, x.mH), torch.complex(P, Q))
    add("torch.Tensor._version.__get__", _versions, P)


def _versions(x: Any) -> int:
    before = x._version
    x.add_(1)
    x[0] = 2
    return int(x._version - before)


for _section in (
    _in_torch, _random, _layers, _pooling, _losses, _operators, _python, _methods, _properties,
):  # fmt: skip
    _section()


EXCLUDED: dict[str, str] = {}


def _exclude(reason: str, names: str, prefix: str = "torch.") -> None:
    EXCLUDED.update({f"{prefix}{name}": reason for name in names.split()})


_exclude(
    "takes symbolic numbers of a compiler, no tensor",
    "_sym_int nn.functional._sym_int sym_float sym_ite sym_max sym_min sym_not sym_sqrt sym_sum",
)
_exclude("is no function of tensors", "autocast")
_exclude(
    "runs on CUDA or ROCm alone",
    "batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats "
    "batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats miopen_batch_norm miopen_convolution "
    "miopen_convolution_add_relu miopen_convolution_relu miopen_convolution_transpose miopen_depthwise_convolution "
    "miopen_rnn Tensor.cuda Tensor.ipu Tensor.mtia Tensor.xpu Tensor.pin_memory Tensor.record_stream "
    "Tensor.__cuda_array_interface__.__get__",
)
_exclude(
    "takes quantized tensors, which are always whole",
    "choose_qparams_optimized fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation "
    "fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight "
    "fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix fused_moving_avg_obs_fake_quant int_repr "
    "q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point quantize_per_channel "
    "quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm quantized_gru_cell quantized_lstm_cell "
    "quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell quantized_rnn_tanh_cell "
    "Tensor.q_per_channel_axis Tensor.q_per_channel_scales Tensor.q_per_channel_zero_points Tensor.q_zero_point",
)
_exclude(
    "takes sparse or nested tensors, which are always whole",
    "ccol_indices_copy col_indices_copy crow_indices_copy row_indices_copy indices_copy values_copy hspmm smm sspaddmm "
    "Tensor.smm Tensor.sspaddmm Tensor.ccol_indices Tensor.col_indices Tensor.row_indices Tensor._coalesced_ "
    "Tensor._dimI Tensor._dimV Tensor._nested_tensor_size Tensor._nested_tensor_storage_offsets "
    "Tensor._nested_tensor_strides Tensor._sparse_mask_projection Tensor.resize_as_sparse_ Tensor.sparse_resize_ "
    "Tensor.sparse_resize_and_clear_ Tensor._clear_non_serializable_cached_data",
)
_exclude(
    "speaks of an address in memory, which another tensor need not share",
    "Tensor.data_ptr Tensor.const_data_ptr Tensor.storage Tensor.untyped_storage Tensor.storage_type Tensor._cdata.__get__",
)
_exclude("changes the storage, of which a sharded tensor has none of its own: refused", "Tensor.set_")
_exclude("gives a tensor of another library (oneDNN), which torch.testing cannot compare", "Tensor.to_mkldnn")
_exclude(
    "is called by torch itself",
    "Tensor._autocast_to_full_precision Tensor._autocast_to_reduced_precision Tensor.module_load",
)
