"""FL024: sampler and trainer disagree about the same tokens."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module


class SamplerTrainerMismatch(Observed):
    code = "FL024"
    name = "sampler-trainer-mismatch"
    severity = Severity.WARNING
    what = """\
Compares the log-probabilities that the sampler and the trainer give to the same tokens with the same weights, and reports a difference beyond the rounding of their format."""
    why = """\
The importance ratio is meant to be 1 before the first update. Where it is not, the policy gradient is biased: part of it corrects a difference that is not there.

Causes: dropout while sampling or while scoring, a sampler in a narrower format, left padding without positions, stale weights."""
    instead = """\
Score in eval mode and in the same format, or correct for the difference with importance weights.

- Set dropout to 0 for reinforcement learning.
- TRL with vLLM: keep `vllm_importance_sampling_correction=True`."""

    tokens = (b"vllm_importance_sampling_correction",)
    wrong = (
        """\
from trl import GRPOConfig, GRPOTrainer

config = GRPOConfig(use_vllm=True, vllm_importance_sampling_correction=False)  # FL024
GRPOTrainer("gpt2", reward, args=config, train_dataset=data).train()
""",
    )
    right = (
        """\
from trl import GRPOConfig, GRPOTrainer

config = GRPOConfig(use_vllm=True, vllm_importance_sampling_correction=True)
GRPOTrainer("gpt2", reward, args=config, train_dataset=data).train()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.all(ast.Call):
            sampler = module.argument(call, None, "use_vllm")
            corrected = module.argument(call, None, "vllm_importance_sampling_correction")
            if sampler is None or corrected is None:
                continue
            if module.constant(sampler) is True and module.constant(corrected) is False:
                yield self.finding(
                    module.location(call),
                    "The sampler (vLLM) computes with other kernels than the trainer, and the correction for it is switched off: the policy gradient is biased by the difference. "
                    "Leave `vllm_importance_sampling_correction` on",
                )

    def says(self, entry: dict[str, Any]) -> str:
        low, _, high = entry["ratio"]
        cause = {
            "dropout": "Dropout is active: set it to 0, or score in eval mode",
            "another number format": "They compute in different number formats",
        }
        return (
            f"With the same weights, the {entry['of']} and the trainer differ by {entry['mean_difference']:.2g} on average in the log-probability of the same tokens "
            f"(rounding explains {entry['rounding']:.1g}); ratios are {low:.2f} to {high:.2f} instead of 1. "
            f"{cause.get(entry['why'], 'Compare their padding, positions and weights')}"
        )
