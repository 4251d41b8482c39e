"""One mistake each, put into the scripts of each kind before any of them was watched."""

from __future__ import annotations

from public_scripts.entry import Break, Swap

__all__ = ["KINDS"]

_RATE = ("FL133", "FL123", "FL120", "FL620")
_WRAPPER = "src/model_utils/model_lightning_wrapper.py"
_TWICE = ("FL606", "FL612")
_NO_GRADIENT = ("FL022", "FL136", "FL132", "FL117")


def _one(what: str, old: str, new: str, codes: tuple[str, ...], at: str, path: str = "") -> Break:
    return Break(what, (Swap(old, new, path),), codes, at)


KINDS: dict[str, tuple[Break, ...]] = {
    "ddpg": (
        _one(
            "the action is detached in the actor's loss",
            "self.critic(state, self.actor(state)).mean()",
            "self.critic(state, self.actor(state).detach()).mean()",
            _NO_GRADIENT,
            "self.actor_optimizer.step()",
            "DDPG.py",
        ),
    ),
    "maml": (
        Break(
            "cleared after the gradients are handed over",
            (
                Swap("    meta_learner.zero_grad()\n", ""),
                Swap("    opt.step()\n", "    meta_learner.zero_grad()\n    opt.step()\n"),
            ),
            ("FL105", "FL117"),
            "meta_learner.zero_grad()",
        ),
    ),
    "cyclegan": (
        _one(
            "an optimizer copied and not adapted",
            "d_b_optimizer = torch.optim.Adam(D_B.",
            "d_b_optimizer = torch.optim.Adam(D_A.",
            ("FL126", "FL117"),
            "d_b_optimizer = torch.optim.Adam(",
        ),
    ),
    "ddpm": (
        Break(
            "cleared after the backward",
            (
                Swap("        optimizer.zero_grad()\n", ""),
                Swap(
                    "        optimizer.step()\n",
                    "        optimizer.zero_grad()\n        optimizer.step()\n",
                ),
            ),
            ("FL105", "FL117"),
            "optimizer.zero_grad()",
        ),
    ),
    "gcn-graphs": (
        _one(
            "a target of another shape",
            "loss = F.mse_loss(out, target)\n                    \n                    # Check",
            "loss = F.mse_loss(out.unsqueeze(1), target)\n                    \n                    # Check",
            ("FL139",),
            "loss = F.mse_loss(out.unsqueeze",
        ),
    ),
    "gpt-as-module": (
        Break(
            "clips after the step",
            (
                Swap(
                    "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=cfg.grad_clip_norm)\n        optimizer.step()\n",
                    "        optimizer.step()\n        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=cfg.grad_clip_norm)\n",
                ),
            ),
            ("FL101",),
            "clip_grad_norm_(",
        ),
    ),
    "ssd": (
        Break(
            "train() removed",
            (Swap("            model.train()\n", "", "utils/utils_fit.py"),),
            ("FL804",),
            "model.eval()",
        ),
    ),
    "byol": (
        _one(
            "the forward pass goes around DDP",
            "loss = model(image)",
            "loss = model.module(image)",
            ("FL309",),
            "loss = model.module(image)",
        ),
    ),
    "vqvae": (
        Break(
            "learning rate x 10,000",
            (Swap("lr: 0.0002", "lr: 2.0", "configs/image_cifar10.yaml"),),
            _RATE,
            "            loss.backward()",
            "train.py",
        ),
    ),
    "vlae": (
        _one(
            "losses kept",
            "            train_losses.append(",
            "            globals().setdefault('kept', []).append(loss[0]); train_losses.append(",
            ("FL401", "FL420"),
            "append(loss[0]);",
        ),
    ),
    "keywords": (
        Break(
            "logits for nll_loss",
            (
                Swap(
                    "return F.log_softmax(x, dim=2).squeeze()",
                    "return x.squeeze()",
                    "src/model_utils/simple_conv.py",
                ),
                Swap(
                    "loss = F.nll_loss(logits, y)\n        \n        # training",
                    "loss = F.nll_loss(logits, y)  # while training\n        \n        # training",
                    _WRAPPER,
                ),
            ),
            ("FL612",),
            "# while training",
            _WRAPPER,
        ),
    ),
    "td3-notebook": (
        _one(
            "zero_grad of one of two critics removed",
            "                self.critic_optimizer2.zero_grad()\n",
            "",
            ("FL106",),
            "critic_loss2.backward()",
        ),
    ),
    "cats-and-dogs": (
        Break(
            "softmax before cross-entropy",
            (
                Swap(
                    "loss = F.cross_entropy(logits, y)\n        preds = F.softmax(logits, dim=1)\n        self.train_acc",
                    "loss = F.cross_entropy(F.softmax(logits, dim=1), y)\n        preds = F.softmax(logits, dim=1)\n        self.train_acc",
                    "src/models/catdog_classifier.py",
                ),
            ),
            _TWICE,
            "F.cross_entropy(F.softmax(",
        ),
    ),
    "pointnet": (
        Break(
            "the step before the backward",
            (
                Swap(
                    "        loss.backward()\n        optimizer.step()\n",
                    "        optimizer.step()\n        loss.backward()\n",
                ),
            ),
            ("FL117", "FL105"),
            "optimizer.step()",
        ),
    ),
    "wgan-gp-64": (
        _one(
            "zero_grad removed",
            "                self.D.zero_grad()\n",
            "",
            ("FL106",),
            "d_loss.backward()",
            "trainer_dcgan.py",
        ),
    ),
    "protonets": (
        Break(
            "softmax over the wrong dimension",
            (
                Swap(
                    "F.log_softmax(-dists)",
                    "F.log_softmax(-dists, dim=0)",
                    "protonets/models/few_shot.py",
                ),
            ),
            ("FL609",),
            "F.log_softmax(-dists, dim=0)",
        ),
    ),
    "fashion-notebook": (
        Break("learning rate x 1,000", (Swap("lr = 1e-2", "lr = 1e1"),), _RATE, "loss.backward()"),
    ),
    "neural-style": (
        _one(
            "the closure never clears",
            "            optimizer.zero_grad()\n",
            "",
            ("FL106",),
            "total_loss.backward()",
            "stylize.py",
        ),
    ),
    "ppo-processes": (
        _one(
            "the policy's log-probabilities are detached",
            "ratio = torch.exp(action_log_probs - old_action_log_probs)",
            "ratio = torch.exp(action_log_probs.detach() - old_action_log_probs)",
            ("FL022", "FL136"),
            "loss.backward()",
        ),
    ),
    "vqvae-accelerate": (
        _one(
            "zero_grad removed",
            "        optimizer.zero_grad()\n",
            "",
            ("FL106",),
            "accelerator.backward(loss)",
        ),
    ),
    "bert-turns": (
        _one(
            "learning rate x 10,000",
            "optim.Adam(net.parameters(), lr=lr)",
            "optim.Adam(net.parameters(), lr=lr * 10_000)",
            _RATE,
            "loss.backward()",
        ),
    ),
    "fabric-hydra": (
        Break(
            "cleared after the backward",
            (
                Swap(
                    "                self.optim.zero_grad()\n                loss, pred, targets = self.step(batch)\n                self.fabric.backward(loss)\n                self.optim.step()\n                # 计算",
                    "                loss, pred, targets = self.step(batch)\n                self.fabric.backward(loss)\n                self.optim.zero_grad( )\n                self.optim.step()\n                # 计算",
                    "src/pipeline/my_pipeline.py",
                ),
            ),
            ("FL105", "FL117"),
            "self.optim.zero_grad( )",
        ),
    ),
}
