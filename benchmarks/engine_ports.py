"""Public training loops with a Stepper: what changes in the script, and that the losses stay what they were.

    python benchmarks/engine_ports.py --mirror DIR --site DIR [NAME ...]      # compare
    python benchmarks/engine_ports.py --mirror DIR --site DIR --diff [NAME]   # show what changes
    python benchmarks/engine_ports.py --mirror DIR --site DIR --write         # and into RESULTS.md

`--mirror` and `--site` as for real_scripts.py, which lays the scripts out with made-up data and small sizes. Nothing fetched is in this repository: an edit
names where it begins and ends, and what to write there. The torchtitan-like loop is ours (engine_titan.py), and runs on four ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from public_scripts.entry import Real
from public_scripts.scripts import SCRIPTS
from real_scripts import Ran, Stage
from results import machine, write_section

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Edit:
    """From the line that begins with `start` up to the one that begins with `end`: other lines, or the same ones moved into a block.

    Without `end`, lines to put before `start`.
    """

    start: str
    end: str = ""
    new: str = ""
    indent: bool = False  # the lines stay, after `new` and inside of it
    last: str = ""  # and then this


@dataclass(frozen=True)
class Port:
    name: str
    edits: tuple[Edit, ...]
    loss: str  # what the script prints of its losses
    args: str = ""  # in place of those of real_scripts.py
    does: str = ""


NANOGPT = Port(
    "nanogpt",
    (
        Edit("import numpy", new="import fallline\n"),
        Edit("# initialize a GradScaler", "# optimizer"),
        Edit(
            "# helps estimate an arbitrarily",
            "@torch.no_grad()",
            "precision = 'fp32' if device_type == 'cpu' else {'float32': 'fp32', 'bfloat16': 'bf16', 'float16': 'fp16'}[dtype]\n"
            "stepper = fallline.Stepper(model, optimizer, accumulate=gradient_accumulation_steps, clip_norm=grad_clip or None, precision=precision)\n",
        ),
        Edit(
            "    for micro_step in range(",
            "    # timing and logging",
            "    for micro_step in range(gradient_accumulation_steps):\n"
            "        with stepper.micro_batch() as micro:\n"
            "            logits, loss = model(X, Y)\n"
            "            X, Y = get_batch('train')\n"
            "            micro.backward(loss)\n\n",
        ),
        Edit("        # scale up to undo", "        if local_iter_num >= 5", "        lossf = loss.item()\n"),
    ),
    r"(?:iter|step) \d+: .*?loss \d+\.\d+",
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=4 --eval_interval=40 --log_interval=1 --block_size=32 "
    "--batch_size=8 --n_layer=2 --n_head=2 --n_embd=32 --max_iters=80 --lr_decay_iters=80 --dropout=0.1 --gradient_accumulation_steps=4",
    "4 micro-batches, clipping, dropout; DDP's switch, the division, unscale, clip, step, update and zero_grad go",
)  # fmt: skip

IMAGENET = Port(
    "imagenet",
    (
        Edit("import torch", new="import fallline\n"),
        Edit("    for epoch in range(args.start_epoch", new="    stepper = fallline.Stepper(model, optimizer, epoch_scheduler=scheduler)\n"),
        Edit("        train(train_loader,", "        # evaluate on", "        train(train_loader, model, criterion, stepper, epoch, device, args)\n\n"),
        Edit("        scheduler.step()", "        # remember best"),
        Edit("def train(train_loader", "    use_accel", "def train(train_loader, model, criterion, stepper, epoch, device, args):\n\n"),
        Edit("    for i, (images, target) in enumerate(train_loader", "        # measure data loading", "    for i, (images, target) in enumerate(stepper.over(train_loader)):\n"),
        Edit(
            "        # compute output",
            "        # measure accuracy",
            "        with stepper.micro_batch() as micro:\n",
            indent=True,
            last="            micro.backward(loss)\n\n",
        ),
        Edit("        # compute gradient and do", "        # measure elapsed time"),
    ),
    r"Loss \d\.\d+e[+-]\d+",
    "--dummy --no-accel --epochs 2 -b 64 -j 0 --lr 0.01 --seed 1 -p 1",
    "`over(loader)` with the per-epoch scheduler; zero_grad, backward, step and scheduler.step go",
)  # fmt: skip

DCGAN = Port(
    "dcgan",
    (
        Edit("import torch", new="import fallline\n"),
        Edit("if opt.dry_run", new="stepperD = fallline.Stepper(netD, optimizerD)\nstepperG = fallline.Stepper(netG, optimizerG)\n\n"),
        Edit("        netD.zero_grad()", "        real_cpu ="),
        Edit("        output = netD(real_cpu)", "        errD_real =", "        with stepperD.micro_batch() as micro:\n", indent=True),
        Edit("        errD_real =", "        errD_real.backward()", "", indent=True),
        Edit("        errD_real.backward()", "        D_x ="),
        Edit("        D_x =", "        errD_fake.backward()", "", indent=True),
        Edit("        errD_fake.backward()", "        D_G_z1 ="),
        Edit("            label.fill_(fake", "            output = netD(fake", "            label = torch.full_like(label, fake_label)\n"),
        Edit("        D_G_z1 =", "        optimizerD.step()", "", indent=True, last="            micro.backward(errD)\n"),
        Edit("        optimizerD.step()", "        ######", "\n"),
        Edit("        netG.zero_grad()", "        label.fill_(real"),
        Edit("        output = netD(fake)", "        errG.backward()", "        with stepperG.micro_batch() as micro:\n", indent=True, last="            micro.backward(errG)\n"),
        Edit("        errG.backward()", "        D_G_z2"),
        Edit("        optimizerG.step()", "        print("),
    ),
    r"Loss_D: .*",
    "--dataset fake --niter 1 --ngf 4 --ndf 4 --batchSize 32 --workers 0 --manualSeed 1",
    "two Steppers; the two backward passes of D become one of their sum, so the labels of the first must not be overwritten; zero_grad, backward and step go",
)  # fmt: skip

PPO = Port(
    "ppo",
    (
        Edit("import gymnasium", new="import fallline\n"),
        Edit("    # ALGO Logic: Storage", new="    stepper = fallline.Stepper(agent, optimizer, clip_norm=args.max_grad_norm)\n\n"),
        Edit(
            "                _, newlogprob, entropy",
            "                optimizer.zero_grad()",
            "                with stepper.micro_batch() as micro:\n",
            indent=True,
            last="                    micro.backward(loss)\n\n",
        ),
        Edit("                optimizer.zero_grad()", "            if args.target_kl"),
        # The script itself writes its losses to TensorBoard only
        Edit('        print("SPS:"', "        writer.add_scalar", '        print("losses", v_loss.item(), pg_loss.item(), entropy_loss.item(), flush=True)\n'),
    ),
    r"losses .*",
    "--total-timesteps 4096 --no-cuda",
    "clipping; zero_grad, backward, clip and step go",
)  # fmt: skip

PORTS = (NANOGPT, IMAGENET, DCGAN, PPO)


def edited(text: str, edit: Edit) -> str:
    begin = _line(text, edit.start, 0)
    end = _line(text, edit.end, begin + 1) if edit.end else begin
    old = text[begin:end]
    if edit.indent:
        kept = "".join("    " + line if line.strip() else line for line in old.splitlines(True))
        return text[:begin] + edit.new + kept.rstrip("\n") + "\n" + edit.last + text[end:]
    return text[:begin] + edit.new + text[end:]


def _line(text: str, start: str, after: int) -> int:
    found = re.compile("^" + re.escape(start), re.MULTILINE).search(text, after)
    if found is None:
        raise SystemExit(f"no line begins with {start!r}")
    return found.start()


def applied(port: Port, text: str, only_logging: bool = False) -> str:
    for edit in port.edits:
        if not only_logging or 'print("' in edit.new:
            text = edited(text, edit)
    return text


def difference(before: str, after: str) -> tuple[str, int, int]:
    """The diff, and how many lines go and come; a line that only moves into a block is not counted."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), "original", "port", lineterm="", n=0))  # fmt: skip
    gone = [line[1:].strip() for line in lines if line.startswith("-") and line != "--- original"]
    come = [line[1:].strip() for line in lines if line.startswith("+") and line != "+++ port"]
    moved = [line for line in gone if line in come]
    for line in moved:
        if line in come:
            come.remove(line)
            gone.remove(line)
    return "\n".join(lines), sum(map(bool, gone)), sum(map(bool, come))


class Compared:
    """One script before and after."""

    def __init__(self, stage: Stage, port: Port) -> None:
        real = next(r for r in SCRIPTS if r.name == port.name)
        self.real: Real = dataclasses.replace(real, args=port.args or real.args)
        self.port = port
        ours, theirs = stage.lay(self.real, "port"), stage.lay(self.real, "original")
        script = theirs / real.script
        text = script.read_text(encoding="utf-8")
        original = applied(port, text, only_logging=True)
        script.write_text(original, encoding="utf-8")
        changed = applied(port, text)
        (ours / real.script).write_text(changed, encoding="utf-8")
        self.diff, self.gone, self.come = difference(original, changed)
        self._stage, self._folders = stage, (theirs, ours)

    def run(self) -> str:
        before, after = (self._stage.run(self.real, folder, None) for folder in self._folders)
        for ran in (before, after):
            if ran.status:
                raise SystemExit(f"{self.port.name} ended with {ran.status}:\n{ran.output[-3000:]}")
        a, b = (re.findall(self.port.loss, ran.output) for ran in (before, after))
        same = sum(x == y for x, y in zip(a, b, strict=True))
        return f"| {self.real.repo} `{self.real.script}` | {self.gone} | {self.come} | {same} of {len(a)} | {_bits(before, after)} | {self.port.does} |"


def _bits(before: Ran, after: Ran) -> str:
    if before.bits.get("steps") != after.bits.get("steps"):
        return f"{before.bits.get('steps')} and {after.bits.get('steps')} updates"
    same = before.bits.get("digest") == after.bits.get("digest")
    return f"{'the same bits' if same else 'rounded differently'} after each of {before.bits['steps']} updates"


def titan() -> str:
    command = [sys.executable, "-W", "ignore", str(HERE / "engine_titan.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr[-3000:])
    return done.stdout.strip().splitlines()[-1]


def table(rows: list[str]) -> str:
    return "\n".join(
        [
            f"`python benchmarks/engine_ports.py --mirror DIR --site DIR`, {machine()}, torch {torch.__version__}",
            "",
            "Lines that only move into a `with` block are not counted. Losses are compared as the script prints them, parameters bit by bit after every update.",
            "",
            "| script | lines that go | lines that come | printed losses that are the same | parameters | what changes |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="only these: nanogpt, imagenet, dcgan, ppo, titan")
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--diff", action="store_true", help="show the diffs and run nothing")
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        stage = Stage(options.mirror, options.site, Path(work))
        for port in PORTS:
            if options.names and port.name not in options.names:
                continue
            compared = Compared(stage, port)
            if options.diff:
                print(compared.diff)
            else:
                rows.append(compared.run())
                print(rows[-1], flush=True)
    if not options.diff and (not options.names or "titan" in options.names):
        rows.append(titan())
    print(table(rows))
    if options.write:
        write_section("ports to the Stepper", table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
