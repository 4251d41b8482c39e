"""Messages that need a device, several machines or a library that is not installed here: as torch, NCCL, DeepSpeed or users posted them."""

from __future__ import annotations

RECORDED = {
    "cudagraph-overwritten": "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. Stack trace: File train.py, line 12",
    # --- launching
    "replica-error": "RuntimeError: Caught RuntimeError in replica 0 on device 0.\nOriginal Traceback (most recent call last):",
    "replica-has-no-parameters": "StopIteration: Caught StopIteration in replica 0 on device 0.",
    "child-failed": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n train.py FAILED\nexitcode  : 1 (pid: 1234)",
    "nccl-error": "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.14.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
    "two-ranks-on-one-gpu": "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    "local-rank-argument": "train.py: error: unrecognized arguments: --local-rank=0",
    "several-machines": "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.4, 29500).",
    "group-not-destroyed": "[rank0]:[W1025 12:00:00 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
    "gather-scalars-warning": "UserWarning: Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and return a vector.",
    # --- sharding
    "fsdp-mixed-dtypes": "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
    "zero3-different-paths": "RuntimeError: still have inflight params [{'id': 723, 'status': 'AVAILABLE', 'numel': 4194304}]",
    "zero3-dtypes": "File deepspeed/runtime/zero/stage3.py, line 525, in defragment\n    assert len(set(t.dtype for t in tensors)) == 1\nAssertionError",
    "empty-shapes": "size mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([32000, 4096]).",
    "deepspeed-overflow": "[INFO] [loss_scaler.py:186:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16384, reducing to 8192",
    "deepspeed-batch-size": "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 8 * 1",
    "deepspeed-mismatch-trainer": "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n- ds train_micro_batch_size_per_gpu=1 vs hf per_device_train_batch_size=8",
    "zero-no-sync": "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 3",
    "device-map-training": "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode. Please rerun your script specifying `--num_processes=1`",
    # --- devices
    "illegal-memory-access": "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some other API call",
    "no-kernel-image": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "driver-too-old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "invalid-device-ordinal": "RuntimeError: CUDA error: invalid device ordinal",
    "cublas-in-disguise": "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cublas-execution-failed": "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
    "gpu-lost": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "mps-not-implemented": "NotImplementedError: The operator 'aten::linalg_qr.out' is not currently implemented for the MPS device.",
    "mps-float64": "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead.",
    "mps-memory": "RuntimeError: MPS backend out of memory (MPS allocated: 18.50 GiB, other allocations: 448.00 KiB, max allowed: 18.72 GiB). Tried to allocate 512.00 MiB on shared pool.",
    # --- memory and seeds
    "oom-without-numbers": "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "cublas-workspace": "RuntimeError: Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or `at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2.",
    # --- libraries: older versions, and what is not installed
    "function-returns-a-view": "RuntimeError: Returning Variables sharing storage with other Variables that require grad is not supported in Python functions. Please submit a feature request if you hit this error.",
    "quantised-cannot-move": "ValueError: `.to` is not supported for `4-bit` or `8-bit` bitsandbytes models. Please use the model as it is, since the model has already been set to the correct devices",
    "sft-data-format": "ValueError: You passed `packing=False` to the SFTTrainer, but you didn't pass a `dataset_text_field` or `formatting_func` argument.",
    "weights-newly-initialised": "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at bert-base-uncased and are newly initialized: ['classifier.bias', 'classifier.weight']\nYou should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.",
    "tokenizers-forked": "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    "sequence-longer-than-maximum": "Token indices sequence length is longer than the specified maximum sequence length for this model (612 > 512). Running this sequence through the model will result in indexing errors",
    "hook-returns-wrong-number": "RuntimeError: hook '<function bwd_hook at 0x7fc89a77b370>' has returned an incorrect number of values (got 1, but expected 2)",
    "mps-placeholder": "RuntimeError: Placeholder storage has not been allocated on MPS device!",
    "lightning-optimizer-index": 'ValueError: Your LightningModule defines 2 optimizers but training_step is missing the "optimizer_idx" argument.',
    "torch-too-old": "AttributeError: 'Conv2d' object has no attribute 'register_full_backward_hook'",
}
