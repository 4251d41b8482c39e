"""One mistake each, put into the scripts of small repositories before any of them was watched."""

from __future__ import annotations

from public_scripts.entry import Break, Swap

__all__ = ["SMALL"]

_RATE = ("FL133", "FL123", "FL120", "FL620")
_AGAIN = "optimizer.zero_grad(set_to_none=True)"
_TWICE = ("FL606", "FL612")


def _one(what: str, old: str, new: str, codes: tuple[str, ...], at: str, path: str = "") -> Break:
    return Break(what, (Swap(old, new, path),), codes, at)


SMALL: dict[str, tuple[Break, ...]] = {
    "cartpole-dqn": (
        _one(
            "zero_grad removed",
            "            optimizer.zero_grad()\n            loss.backward()",
            "            loss.backward()",
            ("FL106",),
            "loss.backward()",
        ),
    ),
    "pendulum-ppo": (
        _one(
            "cleared after the backward",
            "losss2.backward()\n",
            "losss2.backward(); optimizer2.zero_grad(set_to_none=False)\n",
            ("FL105", "FL132"),
            "set_to_none=False",
        ),
    ),
    "basic-ppo": (
        _one(
            "a target of another shape",
            "critic_loss_fn(value_s, advantage)",
            "critic_loss_fn(value_s, advantage.squeeze(-1))",
            ("FL139",),
            "critic_loss_fn(value_s",
        ),
    ),
    "graph-of-nodes": (
        _one(
            "NaN in the data",
            "tensor([[0.0], [1.0], [2]",
            "tensor([[float('nan')], [1.0], [2]",
            ("FL623", "FL620"),
            "    graph(x)",
        ),
    ),
    "gat-lightning": (
        _one(
            "softmax before cross-entropy",
            "logits = self(graph_data)\n        loss",
            "logits = self(graph_data).softmax(-1)\n        loss",
            _TWICE,
            "loss = self.loss_fn(logits[batch.train_mask]",
            "model/GAT/model.py",
        ),
    ),
    "gat-by-hand": (
        Break(
            "train() removed",
            (Swap("            model.train()\n", "", "train.py"),),
            ("FL804",),
            "model.eval()",
            "test.py",
        ),
    ),
    "dcgan-smoothed": (
        _one(
            "zero_grad removed",
            "            opt_g.zero_grad()\n",
            "",
            ("FL106",),
            "loss_g.backward()",
        ),
    ),
    "dcgan-faces": (
        _one(
            "the generator is detached in its own loss",
            "output = self.model_D(fake_imgs)\n",
            "output = self.model_D(fake_imgs.detach())\n",
            ("FL136", "FL117", "FL132"),
            "self.optimizer_G.step()",
            "model_manager.py",
        ),
    ),
    "vit-textures": (
        _one(
            "eval() before the loop",
            "    losses = []\n",
            "    losses = []; model.eval()\n",
            ("FL804", "FL809"),
            "model.eval()",
        ),
    ),
    "vit-cifar": (
        _one(
            "softmax before cross-entropy",
            "outputs = net(images)\n            # Calculate",
            "outputs = net(images).softmax(1)\n            # Calculate",
            _TWICE,
            "loss = criterion(outputs, labels)",
        ),
    ),
    "simclr": (
        Break(
            "learning rate x 10,000",
            (Swap("default=0.0003", "default=3.0"),),
            _RATE,
            "scaler.scale(loss).backward()",
            "simclr.py",
        ),
    ),
    "spline-flows": (
        _one(
            "log of zero",
            "loss = -torch.mean(prior_logprob + log_det)",
            "loss = -torch.mean(prior_logprob + log_det + torch.log(x[:, 0] - x[:, 0]))",
            ("FL620",),
            "loss = -torch.mean(",
        ),
    ),
    "planar-flows": (
        _one(
            "clips after the step",
            "        optimizer.step()\n",
            "        optimizer.step()\n        torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)\n",
            ("FL101",),
            "clip_grad_norm_(",
        ),
    ),
    "lstm-digits": (
        _one(
            "learning rate x 1,000",
            "learning_rate = 0.1",
            "learning_rate = 100.0",
            _RATE,
            "loss.backward()",
        ),
    ),
    "vae-digits": (
        _one(
            "losses kept",
            "train_loss += loss.item()",
            "train_loss += loss",
            ("FL401", "FL420"),
            "train_loss += loss",
        ),
    ),
    "dropout": (
        _one(
            "train() removed",
            "        net_dropped.train()\n",
            "        pass\n",
            ("FL804",),
            "net_dropped.eval()",
        ),
    ),
    "lstm-sine": (
        _one(
            "a target of another shape",
            "loss = loss_func(prediction, y)",
            "loss = loss_func(prediction, y.squeeze(-1))",
            ("FL139",),
            "loss = loss_func(",
        ),
    ),
    "accelerate-glue": (
        _one(
            "the scheduler before the optimizer",
            "                optimizer.step()\n                lr_scheduler.step()\n",
            "                lr_scheduler.step()\n                optimizer.step()\n",
            ("FL109",),
            "lr_scheduler.step()",
        ),
    ),
    "distilbert": (
        _one(
            "learning rate x 1,000,000",
            "learning_rate=2e-5",
            "learning_rate=2e+1",
            _RATE,
            "trainer.train()",
        ),
    ),
    "bert-for-mac": (
        _one(
            "cleared after the backward",
            "        loss.backward()\n        optimizer.step()",
            f"        loss.backward()\n        {_AGAIN}\n        optimizer.step()",
            ("FL105",),
            _AGAIN,
        ),
    ),
    "word2vec": (
        _one(
            "zero_grad removed",
            "            self.optimizer.zero_grad()\n",
            "",
            ("FL106",),
            "loss.backward()",
        ),
    ),
    "siamese": (
        _one(
            "sigmoid before a loss of logits",
            "output = net.forward(img1, img2)\n        loss",
            "output = torch.sigmoid(net.forward(img1, img2))\n        loss",
            _TWICE,
            "loss = loss_fn(output, label)",
        ),
    ),
    "ddpm-cifar": (
        _one(
            "a new model after the optimizer",
            "    # Create output directories\n",
            "    model = __import__('copy').deepcopy(model)\n",
            ("FL306", "FL126"),
            "deepcopy(",
        ),
    ),
    "ddpm-digit": (
        _one(
            "the square root of what is below zero",
            "x0 = (x0.to(device) * 2) - 1",
            "x0 = torch.sqrt((x0.to(device) * 2) - 1)",
            ("FL620", "FL623"),
            "x0 = torch.sqrt(",
        ),
    ),
    "diffusion-lightning": (
        Break(
            "learning rate x 10,000",
            (Swap("learning_rate=1e-1", "learning_rate=1e3", "src/simple_diffusion/model.py"),),
            _RATE,
            "trainer.fit(",
            "src/simple_diffusion/gaussian_1d/train.py",
        ),
    ),
}
