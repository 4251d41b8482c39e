"""Autocast: which operation runs in which type, on which device, and what that means for exp."""

from __future__ import annotations

import warnings

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.precision._autocast import (
    contrastive,
    dispatched,
    half_embeddings,
    ran,
)

HALF, FULL = torch.float16, torch.float32


@experiment(
    "amp-dtypes",
    claim="Under autocast matrix products of float32 are float16 and losses of float16 are float32, on CUDA and on the CPU.",
)
def amp_dtypes() -> Measured:
    products, losses = ("linear", "matmul", "conv1d"), ("mse_loss", "cross_entropy")
    # Each is given the type it is to be taken out of: what stays as it is shows nothing.
    from_full, from_half = dispatched("cuda", given=FULL), dispatched("cuda")
    cuda = {n: from_full[n] for n in products} | {n: from_half[n] for n in losses}
    from_full, from_half = ran("cpu", given=FULL), ran("cpu")
    cpu = {n: from_full[n] for n in products} | {n: from_half[n] for n in losses}
    return Measured(
        sides={"CUDA autocast": dict(cuda), "CPU autocast": dict(cpu)},
        conclusion=f"CUDA autocast (from the dispatcher, without a GPU): linear {cuda['linear']}, mse_loss {cuda['mse_loss']}, cross_entropy {cuda['cross_entropy']}; CPU autocast: {cpu['linear']}, {cpu['mse_loss']}, {cpu['cross_entropy']}",
        holds={
            "CUDA: products in float16": all(cuda[n] == "float16" for n in products),
            "CUDA: losses in float32": all(cuda[n] == "float32" for n in losses),
            "CPU: products in float16": all(cpu[n] == "float16" for n in products),
            "CPU: losses in float32": all(cpu[n] == "float32" for n in losses),
        },
    )


@experiment(
    "autocast-reductions-per-device",
    claim="CUDA autocast keeps sums, norms and softmax in float32, but not mean, var, sqrt, div or sigmoid; CPU autocast keeps only prod.",
    taught="Autocast keeps reductions and norms in float32.",
)
def autocast_reductions_per_device() -> Measured:
    full = (
        "sum",
        "prod",
        "cumsum",
        "norm",
        "softmax",
        "log_softmax",
        "logsumexp",
        "layer_norm",
        "exp",
        "log",
        "pow",
    )
    half = ("mean", "var", "std", "max", "sqrt", "add", "div", "sigmoid")
    cuda, cpu = dispatched("cuda"), ran("cpu")
    kept = [name for name in full + half if cpu[name] == "float32"]
    return Measured(
        sides={
            "CUDA autocast": {name: cuda[name] for name in full + half},
            "CPU autocast": {name: cpu[name] for name in full + half},
        },
        conclusion=f"of {len(full + half)} operations CUDA autocast runs {sum(cuda[n] == 'float32' for n in full + half)} in float32, CPU autocast {len(kept)}",
        holds={
            "CUDA: sums, norms, softmax, exp, log in float32": all(
                cuda[n] == "float32" for n in full
            ),
            "CUDA: mean, var, sqrt, div, sigmoid in float16": all(
                cuda[n] == "float16" for n in half
            ),
            "CPU: only prod in float32": kept == ["prod"],
        },
    )


@experiment(
    "autocast-exp-is-fp32-on-cuda",
    claim="A contrastive loss at T = 0.07 is finite under CUDA autocast, which runs exp in float32, and NaN under CPU autocast with float16.",
    taught="A contrastive loss becomes NaN under autocast because exp overflows in float16.",
)
def autocast_exp_is_fp32_on_cuda() -> Measured:
    exp_on = {"CUDA": dispatched("cuda")["exp"], "CPU": ran("cpu")["exp"]}
    z = half_embeddings()
    as_cuda = contrastive(z, 0.07, exp_in=getattr(torch, exp_on["CUDA"]))
    finite = bool(torch.autograd.grad(as_cuda, z)[0].isfinite().all())
    with torch.autocast("cpu", HALF):
        on_cpu = contrastive(z, 0.07)
    finite_on_cpu = bool(torch.autograd.grad(on_cpu, z)[0].isfinite().all())
    return Measured(
        sides={
            "CUDA autocast (type of exp from the dispatcher)": {
                "exp runs in": exp_on["CUDA"],
                "loss at T = 0.07": f"{as_cuda.item():.2g}",
                "gradients finite": finite,
            },
            "CPU autocast, float16": {
                "exp runs in": exp_on["CPU"],
                "loss at T = 0.07": f"{on_cpu.item():g}",
                "gradients finite": finite_on_cpu,
            },
        },
        conclusion=f"at T = 0.07 the loss is {as_cuda.item():.1e} with CUDA autocast's types (exp in {exp_on['CUDA']}) and {on_cpu.item():g} under CPU autocast (exp in {exp_on['CPU']})",
        holds={
            "CUDA autocast runs exp in float32": exp_on["CUDA"] == "float32",
            "and the loss is finite, with finite gradients": bool(as_cuda.isfinite()) and finite,
            "CPU autocast runs it in float16, and the loss is NaN": exp_on["CPU"] == "float16"
            and bool(on_cpu.isnan()),
        },
    )


@experiment(
    "autocast-off-needs-float",
    claim="autocast(enabled=False) leaves float16 inputs in float16, so exp overflows after all; the inputs need .float().",
    taught="Disabling autocast for the loss function is enough.",
)
def autocast_off_needs_float() -> Measured:
    with torch.autocast("cpu", HALF):
        z = half_embeddings()
        with torch.autocast("cpu", enabled=False):
            off, cast = contrastive(z, 0.07), contrastive(z.float(), 0.07)
    return Measured(
        sides={
            "enabled=False": {"loss": str(off.item()), "type": str(off.dtype)},
            "enabled=False and .float()": {"loss": cast.item(), "type": str(cast.dtype)},
        },
        conclusion=f"with enabled=False alone the loss is {off.item():g}, with .float() as well {cast.item():.1e}",
        holds={
            "alone it is NaN": bool(off.isnan()),
            "with .float() it is finite": bool(cast.isfinite()),
        },
    )


@experiment(
    "temperature-and-exp",
    claim="exp(similarity / T) overflows somewhere between T = 0.1 and 0.09 where it runs in float16, and between 0.0115 and 0.011 in float32.",
)
def temperature_and_exp() -> Measured:
    temperatures = (0.1, 0.09, 0.0115, 0.011)
    half = {t: contrastive(half_embeddings(), t) for t in temperatures}
    full = {t: contrastive(half_embeddings().float(), t) for t in temperatures}
    return Measured(
        sides={
            "float16": {f"loss at T = {t}": f"{loss.item():.2g}" for t, loss in half.items()},
            "float32": {f"loss at T = {t}": f"{loss.item():.2g}" for t, loss in full.items()},
        },
        conclusion=f"float16: {half[0.1].item():.1e} at T = 0.1, {half[0.09].item():g} at 0.09; float32: finite at 0.0115, {full[0.011].item():g} at 0.011",
        holds={
            "float16: 0.1 is finite, 0.09 is not": bool(half[0.1].isfinite())
            and not bool(half[0.09].isfinite()),
            "float32: 0.0115 is finite, 0.011 is not": bool(full[0.0115].isfinite())
            and not bool(full[0.011].isfinite()),
        },
    )


@experiment(
    "amp-import-deprecated",
    claim="torch.cuda.amp.autocast and GradScaler still work but warn; torch.amp.autocast('cuda') and GradScaler('cuda') do not.",
)
def amp_import_deprecated() -> Measured:
    def warned(make: object) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert callable(make)
            make()
        return sum(w.category is FutureWarning for w in caught)

    old = warned(lambda: torch.cuda.amp.autocast()) + warned(lambda: torch.cuda.amp.GradScaler())
    new = warned(lambda: torch.amp.autocast("cuda")) + warned(lambda: torch.amp.GradScaler("cuda"))
    return Measured(
        sides={"torch.cuda.amp": {"FutureWarnings": old}, "torch.amp": {"FutureWarnings": new}},
        conclusion=f"the two old names raise {old} FutureWarnings, the new ones {new}",
        holds={"both old names warn": old == 2, "the new ones do not": new == 0},
    )
