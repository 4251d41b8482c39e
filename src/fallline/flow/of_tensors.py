"""The methods that torch's tensors have, by name and without the underscore of those that work in place (torch 2.x)."""

from __future__ import annotations

__all__ = ["is_of_tensors"]

_NAMES = frozenset(
    """
H T abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all allclose amax amin aminmax angle any apply arccos arccosh arcsin
arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere as_strided as_strided_scatter as_subclass asin asinh atan atan2 atanh backward baddbmm
bernoulli bfloat16 bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm bool broadcast_to byte cauchy
ccol_indices cdouble ceil cfloat chalf char cholesky cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone coalesce col_indices
conj conj_physical const_data_ptr contiguous copy copysign corrcoef cos cosh count_nonzero cov cpu cross crow_indices cuda cummax cummin cumprod
cumsum data data_ptr deg2rad dense_dim dequantize det detach device diag diag_embed diagflat diagonal diagonal_scatter diff digamma dim dim_order
dist div divide dot double dsplit dtype eig element_size eq equal erf erfc erfinv exp exp2 expand expand_as expm1 exponential fill fill_diagonal fix
flatten flip fliplr flipud float float_power floor floor_divide fmax fmin fmod frac frexp gather gcd ge geometric geqrf ger get_device grad
grad_dtype grad_fn greater greater_equal gt half hardshrink hash_tensor heaviside histc histogram hsplit hypot i0 igamma igammac imag index
index_add index_copy index_fill index_put index_reduce index_select indices inner int int_repr inverse ipu is_coalesced is_complex is_conj
is_contiguous is_cpu is_cuda is_distributed is_floating_point is_inference is_ipu is_leaf is_maia is_meta is_mkldnn is_mps is_mtia is_neg is_nested
is_nonzero is_pinned is_quantized is_same_size is_set_to is_shared is_signed is_sparse is_sparse_csr is_vulkan is_xla is_xpu isclose isfinite isinf
isnan isneginf isposinf isreal istft item itemsize kron kthvalue layout lcm ldexp le lerp less less_equal lgamma log log10 log1p log2 log_normal
log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logsumexp long lstsq lt lu lu_solve mH mT
map map2 masked_fill masked_scatter masked_select matmul matrix_exp matrix_power max maximum mean median min minimum mm mode module_load moveaxis
movedim msort mtia mul multinomial multiply mv mvlgamma name nan_to_num nanmean nanmedian nanquantile nansum narrow narrow_copy nbytes ndim
ndimension ne neg negative nelement new new_empty new_empty_strided new_full new_ones new_tensor new_zeros nextafter nonzero nonzero_static norm
normal not_equal numel numpy orgqr ormqr outer output_nr permute pin_memory pinverse polygamma positive pow prelu prod put q_per_channel_axis
q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qr qscheme quantile rad2deg random ravel real reciprocal record_stream
register_hook register_post_accumulate_grad_hook reinforce relu remainder renorm repeat repeat_interleave requires_grad reshape reshape_as resize
resize_as resize_as_sparse resolve_conj resolve_neg retain_grad retains_grad roll rot90 round row_indices rsqrt scatter scatter_add scatter_reduce
select select_scatter set sgn shape share_memory short sigmoid sign signbit sin sinc sinh size slice_inverse slice_scatter slogdet smm softmax solve
sort sparse_dim sparse_mask sparse_resize sparse_resize_and_clear split split_with_sizes sqrt square squeeze sspaddmm std stft storage
storage_offset storage_type stride sub subtract sum sum_to_size svd swapaxes swapdims symeig t take take_along_dim tan tanh tensor_split tile to
to_dense to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr tolist topk trace transpose
triangular_solve tril triu true_divide trunc type type_as unbind unflatten unfold uniform unique unique_consecutive unsafe_chunk unsafe_split
unsafe_split_with_sizes unsqueeze untyped_storage values var vdot view view_as volatile vsplit where xlogy xpu zero
""".split()
)


def is_of_tensors(name: str) -> bool:
    """`mean`, `add_`; not `detached` or `as_dict`, which only an object of somebody's own class has."""
    return name.rstrip("_") in _NAMES
