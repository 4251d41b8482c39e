"""One mistake each, put into the scripts that were drawn by lot."""

from __future__ import annotations

from public_scripts.entry import Break, Swap

__all__ = ["DRAWN"]

_CLIP = "        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)\n"
_AGAIN = "optimizer.zero_grad(set_to_none=True)"
_RATE = ("FL133", "FL123", "FL120", "FL620")

DRAWN: dict[str, tuple[Break, ...]] = {
    "nerf": (
        Break(
            "cleared after the backward",
            (
                Swap(
                    "        loss.backward()\n        optimizer.step()\n",
                    f"        loss.backward()\n        {_AGAIN}\n        optimizer.step()\n",
                ),
            ),
            ("FL105",),
            _AGAIN,
        ),
    ),
    "unet": (
        Break(
            "train() removed",
            (Swap("    net.train()\n", "", "evaluate.py"),),
            ("FL804",),
            "net.eval()",
        ),
    ),
    "conv-tasnet": (
        Break(
            "zero_grad removed",
            (Swap("                self.optimizer.zero_grad()\n", "", "src/solver.py"),),
            ("FL106",),
            "loss.backward()",
        ),
    ),
    "sac": (
        Break(
            "zero_grad removed",
            (
                Swap(
                    "# for gradient ascent\n        self.optimizer.zero_grad()\n        loss.mean().backward()",
                    "# for gradient ascent\n        (loss.mean()).backward()",
                ),
            ),
            ("FL106",),
            "(loss.mean()).backward()",
        ),
    ),
    "pygcn": (
        Break(
            "cleared after the backward",
            (
                Swap(
                    "    loss_train.backward()\n    optimizer.step()\n",
                    f"    loss_train.backward()\n    {_AGAIN}\n    optimizer.step()\n",
                ),
            ),
            ("FL105",),
            _AGAIN,
        ),
    ),
    "transformer": (
        Break(
            "learning rate x 10,000",
            (Swap("default=2.0", "default=20000.0"),),
            _RATE,
            "loss.backward()",
        ),
    ),
    "llm.c": (
        Break(
            "clips after the step",
            (
                Swap(_CLIP, ""),
                Swap("        optimizer.step()\n", f"        optimizer.step()\n{_CLIP}"),
            ),
            ("FL101",),
            "clip_grad_norm_(",
        ),
    ),
    "llms-from-scratch": (
        Break(
            "losses kept",
            (
                Swap(
                    "            loss.backward()  # Calculate",
                    "            globals().setdefault('kept', []).append(loss); loss.backward()  # Calculate",
                ),
            ),
            ("FL401", "FL420"),
            "loss.backward()",
        ),
    ),
    "mae": (
        Break(
            "never divided",
            (Swap("        loss /= accum_iter\n", "", "engine_pretrain.py"),),
            ("FL104",),
            "self._scaler.scale(loss).backward(",
            "util/misc.py",
        ),
    ),
    "yolov3": (
        Break(
            "zero_grad removed",
            (Swap("                optimizer.zero_grad()\n", ""),),
            ("FL106",),
            "loss.backward()",
        ),
    ),
    "run-mlm": (
        Break(
            "no label at all",
            (Swap("mlm_probability=data_args.mlm_probability", "mlm_probability=1e-9"),),
            ("FL011", "FL132", "FL620"),
            "trainer.train(",
        ),
    ),
    "dann": (
        Break(
            "a new model after the optimizer",
            (
                Swap(
                    "for p in my_net.parameters():\n",
                    "my_net = CNNModel( )\nfor p in my_net.parameters():\n",
                ),
            ),
            ("FL306",),
            "CNNModel( )",
        ),
    ),
    "lightning-autoencoder": (
        Break(
            "a loss times zero",
            (Swap("loss = F.mse_loss(x, self(x))", "loss = 0.0 * F.mse_loss(x, self(x))"),),
            ("FL132",),
            "cli.trainer.fit(",
        ),
    ),
    "pytorch-wgan": (
        Break(
            "zero_grad removed",
            (Swap("                self.D.zero_grad()\n", "", "models/wgan_gradient_penalty.py"),),
            ("FL106",),
            "d_loss_real.backward(mone)",
        ),
    ),
    "pinn": (
        Break(
            "the closure never clears",
            (
                Swap(
                    "    def loss_func(self):\n        self.optimizer.zero_grad()\n",
                    "    def loss_func(self):\n",
                ),
            ),
            ("FL106",),
            "loss.backward()",
        ),
    ),
}
