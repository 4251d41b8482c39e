"""What claims of TRL, PEFT and Accelerate rest on (`claims/aligning-notes.md`)."""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from typing import Any

import pytest
import torch
from tests.triage.behaviours_distributed import _documents
from torch import nn
from torch.nn import functional as F


def _helps(config: Any, name: str, *phrases: str) -> None:
    """What the installed version says of one of its settings."""
    said = {f.name: f for f in dataclasses.fields(config)}[name].metadata["help"]
    assert all(phrase in said for phrase in phrases), said


def trl_packs_by_best_fit() -> None:
    from trl import SFTConfig

    _helps(SFTConfig, "packing_strategy", "best-fit decreasing, truncates overflow", "'bfd_split'")
    _helps(SFTConfig, "padding_free", "FlashAttention", "packing is enabled with strategy `'bfd'`")


def trl_documents_its_losses() -> None:
    from trl import DPOConfig, GRPOConfig, SFTConfig

    _helps(SFTConfig, "completion_only_loss", "on the completion for prompt-completion datasets")
    _helps(SFTConfig, "assistant_only_loss", "only for conversational datasets")
    _helps(DPOConfig, "loss_type", "'sft'", "'ipo'", "'robust'")
    _helps(DPOConfig, "label_smoothing", "probability that a preference label is flipped")
    assert {f.name: f.default for f in dataclasses.fields(GRPOConfig)}["loss_type"] == "dapo"
    _helps(GRPOConfig, "loss_type", "`max_completion_length`", "Not recommended due to length bias")
    _helps(GRPOConfig, "scale_rewards", "question-level difficulty bias", "entire batch")
    _helps(GRPOConfig, "mask_truncated_completions", "excluded from the loss")
    _helps(GRPOConfig, "beta", "the reference model is not loaded")


def trl_cuts_at_1024_tokens() -> None:
    from trl import DPOConfig, SFTConfig

    for config in (SFTConfig, DPOConfig):
        defaults = {f.name: f.default for f in dataclasses.fields(config)}
        assert defaults["max_length"] == 1024 and defaults["truncation_mode"] == "keep_start"


def _dpo(margin: torch.Tensor, beta: float = 0.1) -> torch.Tensor:
    return -F.logsigmoid(beta * margin)


def dpo_begins_at_ln_2() -> None:
    from trl import DPOConfig

    assert _dpo(torch.zeros(1)).item() == pytest.approx(math.log(2))
    assert {f.name: f.default for f in dataclasses.fields(DPOConfig)}["learning_rate"] == 1e-6


def dpo_losses_saturate_or_not() -> None:
    margin = torch.tensor([50.0], requires_grad=True)
    (pushes,) = torch.autograd.grad(_dpo(margin).sum(), margin)
    aimed = torch.tensor([1 / (2 * 0.1)], requires_grad=True)
    (rests,) = torch.autograd.grad(((aimed - 1 / (2 * 0.1)) ** 2).sum(), aimed)
    assert pushes.item() < 0 and rests.item() == 0


def summed_log_probabilities_favour_length() -> None:
    from trl import DPOConfig

    each = 0.1  # what the policy has gained on every token
    assert each * 200 > each * 50
    _helps(DPOConfig, "ld_alpha", "verbose")


def group_advantages_need_several_answers() -> None:
    from trl import GRPOConfig

    # how often all rewards of a group are equal, where one answer in ten is right
    alike = {n: 0.9**n + 0.1**n for n in (2, 4, 8, 16)}
    assert alike[2] > 0.8 and alike[16] < 0.2
    _helps(GRPOConfig, "num_generations", "evenly divisib")


def clipped_ratio_has_no_gradient() -> None:
    from trl import GRPOConfig

    def gradient(high: float) -> float:
        ratio = torch.tensor(1.25, requires_grad=True)
        objective = torch.min(ratio * 1.0, ratio.clamp(0.8, 1 + high) * 1.0)
        return torch.autograd.grad(objective, ratio)[0].item()

    assert gradient(0.2) == 0 and gradient(0.28) == 1
    _helps(GRPOConfig, "epsilon_high", "0.28")


def dividing_by_std_lifts_easy_groups() -> None:
    easy = torch.tensor([1.0] * 15 + [0.0])
    mixed = torch.tensor([1.0] * 8 + [0.0] * 8)

    def largest(group: torch.Tensor, divided: bool) -> float:
        centred = group - group.mean()
        return ((centred / group.std()) if divided else centred).abs().max().item()

    assert largest(easy, True) > 3 * largest(mixed, True)
    assert largest(easy, False) < 2 * largest(mixed, False)


def trl_documents_vllm() -> None:
    from trl import GRPOConfig

    _helps(GRPOConfig, "vllm_mode", "share the training GPUs", "`vllm serve`")
    defaults = {f.name: f.default for f in dataclasses.fields(GRPOConfig)}
    assert defaults["vllm_mode"] == "colocate" and defaults["vllm_gpu_memory_utilization"] == 0.3


def kl_estimate_is_positive() -> None:
    torch.manual_seed(0)
    policy, reference = torch.randn(50).log_softmax(0), torch.randn(50).log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    greedy = policy.argmax().expand(1000)
    other = torch.multinomial(reference.exp(), 1000, replacement=True)
    assert exact > 0
    assert (policy - reference)[other].mean() < 0  # samples that are not the policy's
    d = reference - policy
    assert (d.exp() - d - 1 >= 0).all() and greedy.shape == (1000,)


def trl_has_no_ppo_any_more() -> None:
    import trl

    assert not hasattr(trl, "PPOTrainer")
    assert hasattr(trl, "GRPOTrainer") and hasattr(trl, "RLOOTrainer")


def a_reward_may_be_shifted() -> None:
    from trl import RewardConfig

    chosen, rejected = torch.randn(5), torch.randn(5)
    plain, shifted = (-F.logsigmoid((chosen + s) - (rejected + s)) for s in (0.0, 100.0))
    assert torch.allclose(plain, shifted, atol=1e-4)
    _helps(RewardConfig, "center_rewards_coefficient", "mean-zero rewards", "0.01")


def trl_documents_kto() -> None:
    from trl import KTOConfig

    _helps(KTOConfig, "desirable_weight", "unequal number of desirable and undesirable")


def trl_keeps_orpo_apart() -> None:
    import trl

    assert not hasattr(trl, "ORPOTrainer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl.experimental.cpo
        import trl.experimental.orpo
    assert (
        "ref_model" not in inspect.signature(trl.experimental.orpo.ORPOTrainer.__init__).parameters
    )


def jensen_shannon_between_the_kls() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.gkd import GKDConfig
    _helps(GKDConfig, "lmbda", "student data fraction")
    _helps(GKDConfig, "beta", "`0.0`, the loss is the KL", "Inverse KL")


def soft_prompts_are_few_numbers() -> None:
    from peft import PromptTuningConfig

    names = {f.name for f in dataclasses.fields(PromptTuningConfig)}
    assert {"num_virtual_tokens", "prompt_tuning_init"} <= names
    assert 20 * 4096 < 100_000


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.lm_head = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.down(self.up(x).relu()))
        return out


def _adapted(**given: Any) -> Any:
    import peft

    torch.manual_seed(0)
    settings = {"r": 2, "lora_alpha": 4, "target_modules": ["up", "down"], **given}
    return peft.get_peft_model(_Tiny(), peft.LoraConfig(**settings))


def lora_begins_as_the_base_model() -> None:
    model, x = _adapted(), torch.randn(3, 4)
    with model.disable_adapter():
        base = model(x)
    assert torch.equal(model(x), base)
    model(x).sum().backward()
    layer = model.base_model.model.up
    assert layer.lora_A["default"].weight.grad.abs().sum() == 0
    assert layer.lora_B["default"].weight.grad.abs().sum() > 0


def lora_dropout_is_on_the_input() -> None:
    model, x = _adapted(lora_dropout=0.5), torch.randn(3, 4)
    nn.init.ones_(model.base_model.model.up.lora_B["default"].weight)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def all_linear_leaves_the_head() -> None:
    import transformers
    from peft import LoraConfig, get_peft_model

    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = get_peft_model(
        transformers.LlamaForCausalLM(config), LoraConfig(target_modules="all-linear")
    )
    named = {
        n.split(".lora_A")[0].rsplit(".", 1)[-1]
        for n, _ in model.named_parameters()
        if "lora_A" in n
    }
    assert named == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def merging_in_bf16_rounds() -> None:
    weight, update = torch.ones(4, dtype=torch.bfloat16), torch.full((4,), 1e-3)
    assert torch.equal(weight + update.bfloat16(), weight)
    assert not torch.equal(weight.float() + update, weight.float())


def disabled_adapters_leave_the_base() -> None:
    model, x = _adapted(), torch.randn(3, 4)
    with model.disable_adapter():
        base = model(x)
    nn.init.ones_(model.base_model.model.up.lora_B["default"].weight)
    assert not torch.allclose(model(x), base)
    with torch.no_grad(), model.disable_adapter():
        assert torch.equal(model(x), base)


def adapters_switch_what_is_trained() -> None:
    import peft

    model = _adapted()
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["up"]))

    def trained() -> set[str]:
        return {n.split(".")[-2] for n, p in model.named_parameters() if p.requires_grad}

    model.set_adapter("second")
    assert trained() == {"second"}
    model.base_model.set_adapter(["default", "second"])
    assert trained() == {"default", "second"}


def gather_for_metrics_drops_repeats() -> None:
    from accelerate import Accelerator

    _documents(Accelerator.gather_for_metrics, "drops duplicates in the last batch")
    assert "use_gather_object" in inspect.signature(Accelerator.gather_for_metrics).parameters


def accelerate_prints_on_the_main_process() -> None:
    from accelerate import Accelerator

    _documents(Accelerator.print, "only print once per server")


def notebooks_fork() -> None:
    from accelerate import notebook_launcher

    assert 'start_method="fork"' in inspect.getsource(notebook_launcher)


def accelerate_saves_what_is_registered() -> None:
    from accelerate import Accelerator

    _documents(Accelerator.register_for_checkpointing, "`save_state` or `load_state`", "state_dict")


def accelerator_arguments_win() -> None:
    import os

    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    try:
        assert Accelerator(cpu=True).mixed_precision == "bf16"
        AcceleratorState._reset_state(True)
        assert Accelerator(cpu=True, mixed_precision="no").mixed_precision == "no"
    finally:
        del os.environ["ACCELERATE_MIXED_PRECISION"]
        AcceleratorState._reset_state(True)
