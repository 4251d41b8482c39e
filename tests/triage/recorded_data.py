"""Messages of datasets, shapes and types as people paste them, most of them from versions of torch that are no longer installed."""

from __future__ import annotations

RECORDED = {
    "hdf5-in-workers": "TypeError: h5py objects cannot be pickled",
    "indices-are-a-list": "TypeError: list indices must be integers or slices, not list",
    "too-many-indices": "IndexError: too many indices for tensor of dimension 1",
    "main-guard": "RuntimeError: An attempt has been made to start a new process before the current process has finished its bootstrapping phase.",
    "auc-in-training": "ValueError: Only one class present in y_true. ROC AUC score is not defined in that case.",
    "target-must-be-float": "RuntimeError: Found dtype Long but expected Float",
    "target-must-be-long": "RuntimeError: Expected object of scalar type Long but got scalar type Float for argument #2 'target' in call to _thnn_nll_loss2d_forward",
    "index-out-of-range-words": "RuntimeError: index out of range at /pytorch/aten/src/TH/generic/THTensorEvenMoreMath.cpp:191",
    "missing-batch-dimension": "ValueError: expected 4D input (got 3D input)",
    "integer-tensor-in-place": "RuntimeError: result type Float can't be cast to the desired output type long int",
    "batch-size-one-only": "RuntimeError: inconsistent tensor sizes at /pytorch/torch/lib/TH/generic/THTensorMath.c:2709",
    "border-installation": "ModuleNotFoundError: No module named 'flash_attn'",
}
