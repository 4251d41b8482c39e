"""Experiments that must not pass: a false claim, and ones that raise, die, never end, or lack something."""

from __future__ import annotations

import os
import time

import torch

from fallline.proof.experiment import Measured, experiment


@experiment(
    "sum-is-exact",
    claim="A sum in float16 is exact.",
    taught="Rounding never matters.",
)
def sum_is_exact() -> Measured:
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(4000):
        total += 1
    half = total.item()
    return Measured(
        sides={"half": {"sum of 4000 ones": half}, "single": {"sum of 4000 ones": 4000.0}},
        conclusion=f"4000 ones sum to {half:.0f}",
        holds={"there is a sum": half > 0, "the sum is 4000": half == 4000},
        curves={"half": [1.0, 2.0, half], "single": [1.0, 2.0, 4000.0]},
        axes=("ones", "sum"),
    )


@experiment("raises", claim="It raises.")
def raises() -> Measured:
    raise RuntimeError("nothing was measured")


@experiment("dies", claim="It dies.")
def dies() -> Measured:
    print("about to die", flush=True)
    os._exit(7)


@experiment("never-ends", claim="It never ends.")
def never_ends() -> Measured:
    time.sleep(3600)
    raise AssertionError


@experiment("needs-a-package", claim="It needs a package.")
def needs_a_package() -> Measured:
    import a_package_that_nobody_has  # noqa: F401

    raise AssertionError


@experiment("needs-a-device", claim="It needs a device.", needs="cuda")
def needs_a_device() -> Measured:
    return Measured({"one": {"devices": 1}}, "there is 1 device", {"there is one": True})
