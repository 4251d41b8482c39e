"""One mistake each, put into public scripts: what it is, where it is made, and which rules report it on which line."""

from __future__ import annotations

from public_scripts.breaks_drawn import DRAWN
from public_scripts.breaks_kinds import KINDS
from public_scripts.breaks_small import SMALL
from public_scripts.entry import Break, Swap

__all__ = ["BREAKS"]

# by name of the script
BREAKS: dict[str, tuple[Break, ...]] = {
    "mnist": (
        Break(
            "train() removed",
            (Swap("    model.train()\n    for batch_idx", "    for batch_idx"),),
            ("FL804",),
            "model.eval()",
        ),
    ),
    "vae": (
        Break(
            "log of zero",
            (
                Swap(
                    "    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction='sum')",
                    "    BCE = -torch.sum(x.view(-1, 784) * torch.log(torch.relu(recon_x - 0.5)))",
                ),
            ),
            ("FL620",),
            "torch.log(",
        ),
    ),
    "gcn": (
        Break(
            "train() removed",
            (Swap("    model.train()\n    optimizer.zero_grad()", "    optimizer.zero_grad()"),),
            ("FL804",),
            "model.eval()",
        ),
    ),
    "reinforce": (
        Break(
            "zero_grad removed",
            (Swap("    optimizer.zero_grad()\n", "    pass\n"),),
            ("FL106",),
            "policy_loss.backward()",
        ),
    ),
    "actor-critic": (
        Break(
            "losses kept",
            (
                Swap(
                    "    loss.backward()\n",
                    "    globals().setdefault('kept', []).append(loss); loss.backward()\n",
                ),
            ),
            ("FL401", "FL420"),
            "loss.backward()",
        ),
    ),
    "logistic": (
        Break(
            "cleared after the backward",
            (
                Swap(
                    "        optimizer.zero_grad()\n        loss.backward()\n",
                    "        loss.backward()\n        optimizer.zero_grad()\n",
                ),
            ),
            ("FL105",),
            "optimizer.zero_grad()",
        ),
    ),
    "linear": (
        Break(
            "zero_grad removed",
            (Swap("    optimizer.zero_grad()\n", "    pass\n"),),
            ("FL106",),
            "loss.backward()",
        ),
        Break(
            "learning rate x 1,000",
            (Swap("learning_rate = 0.001", "learning_rate = 1.0"),),
            ("FL133", "FL620", "FL123", "FL120"),
            "loss.backward()",
        ),
    ),
    "lstm-lm": (
        Break(
            "clips after the step",
            (
                Swap(
                    "        clip_grad_norm_(model.parameters(), 0.5)\n        optimizer.step()\n",
                    "        optimizer.step()\n        clip_grad_norm_(model.parameters(), 0.5)\n",
                ),
            ),
            ("FL101",),
            "clip_grad_norm_(model.parameters(), 0.5)",
        ),
        Break(
            "clips before the backward",
            (
                Swap(
                    "        loss.backward()\n        clip_grad_norm_(model.parameters(), 0.5)\n",
                    "        clip_grad_norm_(model.parameters(), 0.5)\n        loss.backward()\n",
                ),
            ),
            ("FL102",),
            "clip_grad_norm_(model.parameters(), 0.5)",
        ),
    ),
    "makemore": (
        Break(
            "cleared after the backward",
            (
                Swap(
                    "        model.zero_grad(set_to_none=True)\n        loss.backward()\n",
                    "        loss.backward()\n        model.zero_grad(set_to_none=True)\n",
                ),
            ),
            ("FL105",),
            "model.zero_grad(set_to_none=True)",
        ),
    ),
    "ng-gpt": (
        Break(
            "zero_grad removed",
            (Swap("    optimizer.zero_grad(set_to_none=True)\n", "    pass\n"),),
            ("FL106",),
            "    loss.backward()",
        ),
    ),
    "adder": (
        Break(
            "clips after the step",
            (
                Swap(
                    "            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)\n            self.optimizer.step()\n",
                    "            self.optimizer.step()\n            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)\n",
                    "mingpt/trainer.py",
                ),
            ),
            ("FL101",),
            "clip_grad_norm_(",
        ),
    ),
    "nanogpt": (
        Break(
            "clips scaled gradients",
            (
                Swap("        scaler.unscale_(optimizer)\n", "        pass\n"),
                Swap(
                    "torch.cuda.amp.GradScaler(enabled=(dtype == 'float16'))",
                    "torch.amp.GradScaler('cpu')",
                ),
            ),
            ("FL201",),
            "clip_grad_norm_(",
        ),
    ),
    "lecun1989": (
        Break(
            "square root at zero",
            (
                Swap(
                    "loss = torch.mean((y - yhat)**2)",
                    "loss = torch.mean(torch.sqrt((y - y * yhat / yhat)**2) + yhat)",
                ),
            ),
            ("FL621", "FL620"),
            "torch.sqrt(",
        ),
        Break(
            "zero_grad removed",
            (Swap("            optimizer.zero_grad(set_to_none=True)\n", "            pass\n"),),
            ("FL106",),
            "loss.backward()",
        ),
    ),
    "made": (
        Break(
            "zero_grad removed",
            (Swap("            opt.zero_grad()\n", "            pass\n"),),
            ("FL106",),
            "loss.backward()",
        ),
        Break(
            "the last layer is detached",
            (Swap("xbhat += model(xb)", "xbhat += model(xb).detach() + 0 * model(xb)"),),
            ("FL132", "FL122"),
            "loss.backward()",
        ),
    ),
    "cifar": (
        Break(
            "train() removed",
            (Swap("    net.train()\n    train_loss", "    train_loss"),),
            ("FL804",),
            "net.eval()",
        ),
    ),
    "dqn": (
        Break(
            "zero_grad removed",
            (Swap("                optimizer.zero_grad()\n", "                pass\n"),),
            ("FL106",),
            "loss.backward()",
        ),
    ),
    "bug-report": (
        Break(
            "a loss times zero",
            (
                Swap(
                    'loss = self(batch).sum()\n        self.log("train_loss", loss)',
                    'loss = self(batch).sum() * 0.0\n        self.log("train_loss", loss)',
                ),
            ),
            ("FL132",),
            "trainer.fit(",
        ),
    ),
    "lightning-gan": (
        Break(
            "zero_grad removed",
            (Swap("        opt_d.zero_grad()\n", "        pass\n"),),
            ("FL106",),
            "self.manual_backward(d_loss)",
        ),
    ),
    "fabric-mnist": (
        Break(
            "zero_grad removed",
            (Swap("            optimizer.zero_grad()\n", "            pass\n"),),
            ("FL106",),
            "fabric.backward(loss)",
        ),
    ),
    "fabric-lm": (
        Break(
            "clips after the step",
            (
                Swap(
                    "        fabric.clip_gradients(model, optimizer, clip_val=0.25)\n        optimizer.step()\n",
                    "        optimizer.step()\n        fabric.clip_gradients(model, optimizer, clip_val=0.25)\n",
                ),
            ),
            ("FL101",),
            "fabric.clip_gradients(",
        ),
    ),
    "accelerate-nlp": (
        Break(
            "cleared after the backward",
            (
                Swap(
                    "            accelerator.backward(loss)\n",
                    "            accelerator.backward(loss)\n            optimizer.zero_grad()\n",
                ),
                Swap(
                    "                lr_scheduler.step()\n                optimizer.zero_grad()\n",
                    "                lr_scheduler.step()\n",
                ),
            ),
            ("FL105",),
            "optimizer.zero_grad()",
        ),
    ),
    "accelerate-accumulation": (
        Break(
            "divided by hand too",
            (
                Swap(
                    "                loss = output.loss\n",
                    "                loss = output.loss / gradient_accumulation_steps\n",
                ),
            ),
            ("FL129",),
            "accelerator.backward(loss)",
        ),
    ),
    "run-clm": (
        Break(
            "no label at all",
            (
                Swap(
                    'result["labels"] = result["input_ids"].copy()',
                    'result["labels"] = [[-100] * len(x) for x in result["input_ids"]]',
                ),
            ),
            ("FL011", "FL620"),
            "trainer.train(",
        ),
    ),
    "run-clm-no-trainer": (
        Break(
            "the scheduler before the optimizer",
            (
                Swap(
                    "                optimizer.step()\n                lr_scheduler.step()\n",
                    "                lr_scheduler.step()\n                optimizer.step()\n",
                ),
            ),
            ("FL109",),
            "lr_scheduler.step()",
        ),
    ),
    "trl-sft": (
        Break(
            "learning rate x 1,000,000",
            (
                Swap(
                    "    trainer.train()\n",
                    "    trainer.args.learning_rate = 20.0; trainer.train()\n",
                ),
            ),
            ("FL133", "FL123", "FL120", "FL620"),
            "trainer.train()",
        ),
    ),
    "peft-olora": (
        Break(
            "learning rate x 10,000",
            (
                Swap(
                    "    trainer.train()\n",
                    "    trainer.args.learning_rate = 20.0; trainer.train()\n",
                ),
            ),
            ("FL133", "FL123", "FL120", "FL620"),
            "trainer.train()",
        ),
    ),
    **DRAWN,
    **SMALL,
    **KINDS,
}
