"""`fallline equal` on loops with one planted fault each, and on right ones, in six frameworks: each fault named, each right loop equal.

    python benchmarks/equal.py                        # all of them: two hours of CPU
    python benchmarks/equal.py --jobs 16 --kept FILE  # sixteen at once; what is known is kept, so a run that was stopped continues
    python benchmarks/equal.py --only "sped train"    # those of one framework: plain, accelerated, lightened, trained, ranked, sped
    python benchmarks/equal.py --kept FILE --known --write  # the section of RESULTS.md from what is kept

Where a ratio follows from no simple fraction (a micro-batch that is wiped, means that count the same), it is computed here without
`fallline equal`: the gradient at the first step of the wrong loop over that of the right one, before the clip that belongs to the step,
dropout off.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import write_section
from side_by_side import answers, give, made, options

sys.path.insert(0, str(Path(__file__).parent))


@dataclass
class Case:
    """One loop, and what has to be said about it."""

    module: str
    loop: str
    fault: str
    what: str = ""  # the comparison that differs; none for a right loop
    code: str | None = None
    ratio: float | None = None
    ranks: int = 1
    only: tuple[str, ...] = ()
    update: int = 0
    against: str = ""  # the right loop whose gradient gives the ratio

    @property
    def key(self) -> str:
        return f"{self.module} {self.loop}: {self.fault} ({self.ranks} ranks)"


A, F = ("accumulation",), ("features",)
FAULTS = [
    Case("plain", "classify", "undivided", "accumulation", "FL104", 4),
    Case("plain", "classify", "undivided and clipped", "accumulation", "FL104", 4),
    Case("plain", "classify", "divided twice", "accumulation", "FL129", 1 / 4),
    Case("plain", "classify", "wrong divisor", "accumulation", "FL104", 2),
    Case("plain", "classify", "wiped", "accumulation", "FL105", against="right"),
    Case("plain", "classify", "clip each", "accumulation", "FL103", against="right"),
    Case("plain", "classify", "divided inside", "accumulation", "FL110", against="right"),
    Case("plain", "classify", "scaled after clipping", "clipping", None, 1 / 4),
    Case("plain", "classify", "remainder", "remainder", "FL107", 3 / 4),
    Case("plain", "classify", "remainder dropped", "remainder", "FL107"),
    Case("plain", "language", "mean of means", "tokens", "FL111", against="right"),
    Case(
        "plain",
        "language",
        "divided by the last one's tokens",
        "accumulation",
        None,
        against="right",
    ),
    Case("plain", "blocks", "checkpoint without rng", "checkpointing", "FL407"),
    Case("plain", "blocks", "compile only", "compile", None),
    Case("plain", "blocks", "eager only", "compile", None),
    Case("plain", "evaluated", "evaluation divided twice", "evaluation", None, 1 / 8),
    Case("plain", "evaluated", "evaluation undivided", "evaluation", None, 3),
    Case("plain", "shifted", "labels shifted twice", "labels", None, against="right"),
    Case("plain", "drawn", "drawn undivided", "accumulation", "FL104", 4),
    Case("plain", "split", "split undivided", "accumulation", "FL104", 4),
    Case("plain", "memory_format", "flattened by memory order", "channels_last", None),
    Case("plain", "ordered", "weighted by position", "order", None),
    Case("plain", "two", "second summed", "accumulation", "FL104", 4),
    Case("plain", "later", "undivided from the third update", "accumulation", "FL104", 4, update=2),
    Case("accelerated", "train", "undivided", "accumulation", "FL104", 4),
    Case("accelerated", "train", "divided twice", "accumulation", "FL129", 1 / 4),
    Case("accelerated", "train", "wiped", "accumulation", "FL105", against="right"),
    Case("accelerated", "train", "clip each", "accumulation", "FL103", against="right"),
    Case("accelerated", "train", "remainder", "remainder", "FL107", 3 / 4),
    Case("accelerated", "train", "scaled after clipping", "clipping", None, 1 / 4),
    Case("accelerated", "train", "evaluation undivided", "evaluation", None, 3),
    Case("accelerated", "train", "by ranks twice", "ranks", "FL137", 1 / 2, 2),
    Case("accelerated", "counted", "divided again", "accumulation", "FL129", 1 / 4),
    Case("lightened", "train", "divided twice", "accumulation", "FL129", 1 / 4),
    Case("lightened", "train", "divided before the step", "accumulation", "FL129", 1 / 4),
    Case("lightened", "train", "manual undivided", "accumulation", "FL104", 4),
    Case("lightened", "train", "manual wiped", "accumulation", "FL105", against="right manual"),
    Case("lightened", "train", "manual clip each", "accumulation", "FL103", against="right manual"),
    Case("lightened", "train", "remainder", "remainder", "FL107", 3 / 4),
    Case("lightened", "train", "evaluation divided twice", "evaluation", None, 1 / 8),
    Case("trained", "train", "undivided", "accumulation", "FL104", 4),
    Case("trained", "train", "divided twice", "accumulation", "FL129", 1 / 4),
    Case("trained", "train", "mean of means", "tokens", "FL111", against="right mean at once"),
    Case("trained", "train", "labels shifted twice", "labels", None, against="right"),
    Case("trained", "train", "padding trained", "padding", None),
    Case("ranked", "classify", "by ranks twice", "ranks", "FL137", 1 / 2, 2),
    Case("ranked", "classify", "fsdp by ranks twice", "ranks", "FL137", 1 / 2, 2),
    Case("ranked", "classify", "summed over ranks", "ranks", "FL137", 2, 2),
    Case("ranked", "classify", "undivided", "accumulation", "FL104", 2, 2),
    Case("ranked", "classify", "no sampler", "ranks", "FL304", None, 2),
    Case("ranked", "classify", "never synchronised", "ranks", "FL320", None, 2),
    Case("ranked", "language", "mean of ranks", "ranks", None, None, 2),
    Case("sped", "train", "undivided", "accumulation", "FL104", 4),
    Case("sped", "train", "divided twice", "accumulation", "FL129", 1 / 4),
    Case("sped", "train", "wiped", "accumulation", "FL105", against="right"),
    Case("sped", "train", "clip each", "accumulation", "FL103", against="right"),
    Case("sped", "train", "remainder", "remainder", "FL107"),
    Case("sped", "train", "by ranks twice", "ranks", "FL137", 1 / 2, 2),
    Case("sped", "train", "zero 2, divided twice", "accumulation", "FL129", 1 / 4),
    Case("sped", "train", "zero 1, by ranks twice", "ranks", "FL137", 1 / 2, 2),
]
RIGHT = [
    *(Case("plain", "classify", f"right{more}") for more in ("", " by hand", " clip", " flush", " batch norm", " autocast", " autocast inside", " adam", " float64", " foreach", " fused", " one batch", " sum", " scaler")),
    *(Case("plain", "language", f"right{more}") for more in ("",)),
    *(Case("plain", "blocks", f"right{more}") for more in ("", " checkpoint", " compile", " reentrant")),
    *(Case("plain", "evaluated", f"right{more}") for more in ("", " sum over samples")),
    *(Case("plain", loop, "right") for loop in ("shifted", "drawn", "split", "noisy", "augmented", "memory_format", "attention", "ordered", "two")),
    Case("plain", "later", "right", update=3),
    *(Case("accelerated", "train", f"right{more}") for more in ("", " by hand", " clip")),
    Case("accelerated", "train", "right", ranks=2),
    Case("accelerated", "counted", "right"),
    *(Case("lightened", "train", f"right{more}") for more in ("", " clip", " manual")),
    *(Case("trained", "train", f"right{more}") for more in ("", " flush", " checkpointing", " bf16", " clip", " equal lengths")),
    *(Case("ranked", "classify", f"right{more}", ranks=2) for more in ("", " clip", " fsdp", " fsdp clip")),
    Case("ranked", "language", "right", ranks=2),
    *(Case("sped", "train", f"right{more}") for more in ("", " clip", " zero 1", " zero 2 clip", " zero 3")),
    *(Case("sped", "train", f"right{more}", ranks=2) for more in ("", " zero 2")),
]  # fmt: skip


@dataclass
class Outcome:
    case: Case
    right: bool
    said: str
    runs: int = 0


def first_gradient(module: str, loop: str, fault: str) -> float:
    """The length of the gradient at the first step of a loop, in a process of its own, dropout off."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            _to_first_step(module, loop, fault, write)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return float(said)


def _to_first_step(module: str, loop: str, fault: str, answer: int) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    clipped: list[float] = []  # lengths before each clip since the last backward
    backward, clip = torch.Tensor.backward, torch.nn.utils.clip_grad_norm_

    def length(parameters: Any) -> float:
        found = [p.grad.double().flatten() for p in parameters if p.grad is not None]
        return float(torch.cat(found).norm())

    def goes_backward(*args: Any, **kwargs: Any) -> None:
        clipped.clear()
        backward(*args, **kwargs)

    def clips(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        held = list(parameters)
        clipped.append(length(held))
        return clip(held, *args, **kwargs)

    def ends(optimizer: Any, *_: Any) -> None:
        held = [p for g in optimizer.param_groups for p in g["params"]]
        os.write(answer, str((clipped or [length(held)])[0]).encode())
        os._exit(0)

    torch.Tensor.backward = goes_backward  # type: ignore[method-assign]
    torch.nn.utils.clip_grad_norm_ = clips  # type: ignore[assignment]
    functional = torch.nn.functional
    attention = functional.scaled_dot_product_attention
    functional.dropout = lambda input, *_, **__: input
    functional.scaled_dot_product_attention = lambda *args, **kwargs: attention(*args, **{**kwargs, "dropout_p": 0.0})  # fmt: skip
    register_optimizer_step_pre_hook(ends)
    importlib.import_module(f"equal_loops.{module}").LOOPS[loop](fault)


def expected_ratio(case: Case) -> float | None:
    if not case.against:
        return case.ratio
    lengths = [first_gradient(case.module, case.loop, f) for f in (case.fault, case.against)]
    return lengths[0] / lengths[1]


def judge(case: Case) -> Outcome:
    """Run it, and hold what was said against what has to be."""
    from fallline.instruments.equal import equal

    ratio = expected_ratio(case)
    loop = importlib.import_module(f"equal_loops.{case.module}").LOOPS[case.loop]
    try:
        answer = equal(
            functools.partial(loop, case.fault),
            ranks=case.ranks,
            only=case.only,
            update=case.update,
        )
    except Exception as error:
        return Outcome(case, False, f"{type(error).__name__}: {error}")
    wrong = [c for c in answer.comparisons if not c.equal]
    if case.what:
        hits = [c for c in wrong if (c.what, c.code) == (case.what, case.code)]
        right = bool(hits) and (ratio is None or abs((hits[0].ratio or 0) / ratio - 1) < 0.02)
        said = (hits or wrong)[0].message if wrong else "equal"
        if ratio is not None and hits and not right:
            said = f"the ratio should be {ratio:.4f}: {said}"
    else:
        right = answer.verdict == "equal"
        said = wrong[0].message if wrong else f"equal in {len(answer.comparisons)} ways"
    return Outcome(case, right, said, answer.runs)


def main() -> int:
    given = options(__doc__).parse_args()
    cases = {case.key: case for case in (*FAULTS, *RIGHT)}
    if given.one:
        found = judge(cases[given.one])
        give({"right": found.right, "said": found.said, "runs": found.runs})
        return 0
    outcomes, made_by = [], []
    for answer in answers(__file__, cases, given):
        right, said = answer.get("right", False), answer.get("said") or answer["failed"]
        outcomes.append(Outcome(cases[answer["name"]], right, said))
        made_by.append(answer)
        print(f"{'ok   ' if right else 'WRONG'} {answer['name']} ({answer.get('runs', 0)} runs, {answer.get('seconds', 0):.0f} s): {said}", flush=True)  # fmt: skip
    body = table(outcomes, made(made_by))
    print(body)
    if given.write:
        write_section("One update in other ways", body)
    return 0 if all(o.right for o in outcomes) else 1


NAMES = {"plain": "plain PyTorch", "accelerated": "Accelerate", "lightened": "Lightning", "trained": "transformers' Trainer", "ranked": "DDP and FSDP2 (gloo)", "sped": "DeepSpeed"}  # fmt: skip


def table(outcomes: list[Outcome], where: str) -> str:
    lines = [
        f"`python benchmarks/equal.py`, {where}: `fallline equal` on loops with one planted fault each (it has to be named with the right rule and, where there is one, ratio) and on right loops (they have to be called equal).",
        "",
        "| framework | faults named | right loops called equal |",
        "|---|---:|---:|",
    ]
    for module, name in NAMES.items():
        mine = [o for o in outcomes if o.case.module == module]
        if mine:
            faults, right = [o for o in mine if o.case.what], [o for o in mine if not o.case.what]
            lines.append(f"| {name} | {sum(o.right for o in faults)} of {len(faults)} | {sum(o.right for o in right)} of {len(right)} |")  # fmt: skip
    faults, right = [o for o in outcomes if o.case.what], [o for o in outcomes if not o.case.what]
    lines.append(f"| all | {sum(o.right for o in faults)} of {len(faults)} | {sum(o.right for o in right)} of {len(right)} |")  # fmt: skip
    checked = [o for o in faults if o.case.ratio is not None or o.case.against]
    lines += ["", f"{len(checked)} of the {len(faults)} faults have a ratio that is checked; the others differ in what has none (a step that never comes, other random numbers, samples that repeat)."]  # fmt: skip
    missed = [o for o in outcomes if not o.right]
    lines += ["", "Not as they should be:", ""] if missed else []
    lines += [f"- {NAMES[o.case.module]}, {o.case.loop}: {o.case.fault}: {o.said}" for o in missed]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
