"""The error index: the real text of each message, provoked with the installed versions, leads to its entry."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from tests.triage import provoke

from fallline.triage import answer
from fallline.triage.claim import claims


def homes(kind: str) -> list[ModuleType]:
    """The modules beside this one whose name begins with that word: a topic adds a file of its own."""
    names = sorted(path.stem for path in Path(__file__).parent.glob(f"{kind}*.py"))
    return [import_module(f"tests.triage.{name}") for name in names]


# provocations of another wording of the same entry
ALSO = {
    "unscale_after_step": "unscale-per-micro-batch",
    "autocast_deprecated": "amp-deprecated",
    "autocast_no_cuda": "scaler-no-cuda",
    "collate_sizes": "stack-sizes",
    "weighted_sampler": "loader-empty-dataset",
    "pickle_lambda": "loader-lambda-spawn",
    "ddp_without_group": "group-not-initialised",
    "optimizer_state_size": "optimizer-state-groups",
    "loader_persistent": "loader-prefetch",
    "compile_data_dependent": "compile-fullgraph-break",
    "numpy_from_cuda": "numpy-from-device",
    "new_group_rank": "invalid-rank",
    "distributed_sampler_rank": "invalid-rank",
    "ddp_attribute": "no-attribute-ddp",
    "hf_bf16_and_fp16": "hf-bf16-cpu",
    "hf_resize_embeddings": "attention-heads",
    "hf_not_divisible_heads": "attention-heads",
    "hf_position_out_of_range": "embedding-index",
    "hf_no_train_dataset": "trl-no-dataset",
    "bf16_weights_float_input": "bf16-dtype-mismatch",
    "reentrant_with_ddp": "checkpointing-with-ddp",
}
# messages that a CPU in one process cannot give: their text is a recorded one (RECORDED), from an H200 or from several ranks
RECORDED = {
    "oom-pieces": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.55 GiB memory in use. Of the allocated memory 20.10 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated.",
    "oom-fragmented": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 22.55 GiB memory in use. Of the allocated memory 13.10 GiB is allocated by PyTorch, and 8.96 GiB is reserved by PyTorch but unallocated.",
    "oom-full": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 5; 23.70 GiB total capacity; 23.29 GiB already allocated; 58.56 MiB free; 23.35 GiB reserved in total by PyTorch)",
    "oom-others": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.12 GiB is free. Process 12 has 15.00 GiB memory in use. Including non-PyTorch memory, this process has 7.55 GiB memory in use. Of the allocated memory 7.10 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
    "device-assert": "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call",
    "cuda-fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
    "device-mismatch": "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    # two cards in one machine, and a missing rank: as users posted them
    "two-gpus-in-one-operation": "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:2 and cuda:0!",
    "store-barrier": "Waiting in store based barrier to initialize process group for rank: 2, key: store_based_barrier_key:2 (world_size=8, worker_count=7, timeout=0:30:00)",
    "rnn-backward-in-eval": "RuntimeError: cudnn RNN backward can only be called in training mode",
    "nccl-timeout": "[Rank 1] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    "nccl-timeout-numbers": "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=456, OpType=ALLREDUCE, NumelIn=65297, NumelOut=65297, Timeout(ms)=600000) ran for 600054 milliseconds before timing out.",
    "sigkill": "traceback : Signal 9 (SIGKILL) received by PID 21833",
    "ddp-shapes-differ": "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has inconsistent 4 params.",
    "gloo-connection-closed": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:4711: Connection reset by peer",
    "no-grad-fn-checkpoint": "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\nwith gradient checkpointing",
}
for _home in homes("recorded"):
    RECORDED |= _home.RECORDED
for _home in homes("provoke"):
    ALSO |= getattr(_home, "ALSO", {})
PROVOKED = {
    name: function
    for home in homes("provoke")
    for name, function in vars(home).items()
    if isinstance(function, FunctionType)
    and function.__module__ == home.__name__
    and not name.startswith("_")
    and name != "said"
}


# the numbers of these messages say more than the message
PARTICULAR = {
    "conv_channels": "message-grey-for-colour",
    "bce_shapes": "message-one-apart",
    "mse_broadcast": "message-one-apart",
    "collate_sizes": "message-lengths-apart",
    "stack_sizes": "message-lengths-apart",
}


@pytest.mark.parametrize("name", PROVOKED)
def test_the_real_message_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    wanted = PARTICULAR.get(name) or ALSO.get(name, name.replace("_", "-"))
    text = provoke.said(PROVOKED[name])
    assert text, "nothing was raised and nothing was warned"
    reply = answer(text).reply
    assert reply.claims[:1] == [wanted], text[:300]
    assert not re.search(r"\{\w*\}|the value", reply.answer), reply.answer


@pytest.mark.parametrize("wanted", RECORDED)
def test_a_recorded_message_is_known(wanted: str) -> None:
    reply = answer(RECORDED[wanted]).reply
    assert reply.claims[:1] == [wanted]
    assert not re.search(r"\{\w*\}|the value", reply.answer), reply.answer


def test_every_entry_has_a_message_that_was_really_given() -> None:
    given = {ALSO.get(name, name.replace("_", "-")) for name in PROVOKED} | RECORDED.keys()
    # what the code or the numbers tell apart shares its message with another entry
    shared = {claim.id for claim in claims() if claim.messages and claim.code}
    assert {claim.id for claim in claims() if claim.messages} - shared <= given
    assert len({claim.id for claim in claims() if claim.messages}) >= 120


def test_numbers_in_a_message_are_read() -> None:
    fragmented = answer(RECORDED["oom-fragmented"]).reply.answer
    assert "8.96 GiB" in fragmented and "13.10 GiB" in fragmented and "23.69 GiB" in fragmented
    # what is free and what lies idle count together
    assert "3.02 GiB" in answer(RECORDED["oom-pieces"]).reply.answer
    assert "15.02 GiB" in answer(RECORDED["oom-others"]).reply.answer
    shapes = answer("mat1 and mat2 shapes cannot be multiplied (32x400 and 512x10)").reply.answer
    assert "400" in shapes and "512" in shapes
