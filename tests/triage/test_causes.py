"""A complaint about pasted code is answered with what is in that code, in its names and lines; and with nothing that does not explain it."""

from __future__ import annotations

import pytest

from fallline.triage.answer import answer
from fallline.triage.causes import causes_in
from fallline.triage.claim import points
from fallline.triage.evidence import gather
from fallline.triage.pasted import parsed
from fallline.triage.program import facts_of
from fallline.triage.symptoms import COMPLAINTS, symptoms
from fallline.triage.unwrapped import unwrapped

LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    out = net(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
"""
DEFAULT = "optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)\n"
NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(784, 64)
        self.two = nn.Linear(64, {units})

    def forward(self, x):
        h = F.relu(self.one(x))
        return {end}
"""


def program(loss: str, end: str = "self.two(h)", units: int = 10, more: str = DEFAULT) -> str:
    return f"{NET.format(end=end, units=units)}\nnet = Net()\ncriterion = {loss}\n{more}{LOOP}"


# the cause, the complaint, the code, and what the answer names
CAUSES = [
    ("cause-one-unit-cross-entropy", "my loss is not decreasing", program("nn.CrossEntropyLoss()", units=1), "nn.Linear(64, 1)"),
    ("cause-squashed-and-squared", "the network outputs the same value for every input", program("nn.MSELoss()", "torch.sigmoid(self.two(h))"), "torch.sigmoid(self.two(h))"),
    ("cause-relu-at-the-end", "why does my model not learn?", program("nn.MSELoss()", "F.relu(self.two(h))"), "F.relu(self.two(h))"),
    ("cause-likelihood-of-no-log", "why is the loss negative?", program("nn.NLLLoss()", "F.softmax(self.two(h), dim=1)"), "nn.NLLLoss()"),
    ("cause-rate-high", "the loss does not go down", program("nn.CrossEntropyLoss()", more="optimizer = torch.optim.Adam(net.parameters(), lr=0.1)\n"), "a rate of 0.1"),
    ("cause-rate-low", "training loss stays constant", program("nn.CrossEntropyLoss()", more="lr = 1e-4\noptimizer = torch.optim.SGD(net.parameters(), lr=lr)\n"), "a rate of 0.0001"),
    ("cause-decay-high", "it predicts the same class for all images", program("nn.CrossEntropyLoss()", more="optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=0.1)\n"), "decay of 0.1"),
    ("cause-constant-weights", "my network does not learn", program("nn.CrossEntropyLoss()", more=f"nn.init.constant_(net.one.weight, 0.5)\n{DEFAULT}"), "net.one.weight"),
    ("cause-labels-are-random", "accuracy stays at chance", program("nn.CrossEntropyLoss()", more=f"labels = torch.randint(0, 10, (100,))\n{DEFAULT}"), "torch.randint"),
    ("cause-rounded-logits", "the loss goes down but accuracy is wrong", program("nn.BCEWithLogitsLoss()", units=1) + "    correct += (out.round() == y).sum()\n", "out.round()"),
    ("cause-argmax-over-the-batch", "accuracy is very low", program("nn.CrossEntropyLoss()") + "    pred = out.argmax(dim=0)\n", "out.argmax(dim=0)"),
    ("cause-anomaly-mode", "training is very slow", "torch.autograd.set_detect_anomaly(True)\n" + program("nn.CrossEntropyLoss()"), "set_detect_anomaly"),
    ("cause-half-weights", "the loss becomes nan", program("nn.CrossEntropyLoss()", more=f"net.half()\n{DEFAULT}"), "net.half()"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "says", "code", "named"), CAUSES, ids=[c[0] for c in CAUSES])
def test_the_cause_is_in_the_code(name: str, says: str, code: str, named: str) -> None:
    found = causes_in(code, says, ())
    assert found and found[0].claim.id == name
    question = f"{says}\n```python\n{code}\n```"
    evidence = gather(question)
    reply = answer(question, evidence).reply
    told = " ".join([reply.answer, *(a.do for a in reply.actions)])
    assert named in told and "{" not in told and "the value`" not in told


HEAD = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
EMPTY = "ValueError: optimizer got an empty parameter list"
TWICE = "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed)."
REPEATED = "UserWarning: Using a target size (torch.Size({})) that is different to the input size (torch.Size({})). This will likely lead to incorrect results due to broadcasting."
MATRICES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({})"
# the cause, the message, the code, and what the answer names
RAISED = [
    ("message-init-misspelt", EMPTY, "class Net(nn.Module):\n    def _init_(self):\n        self.one = nn.Linear(2, 2)\n\n    def forward(self, x):\n        return self.one(x)\n", "`_init_`"),
    ("message-layer-in-a-local", EMPTY, f"{HEAD}        fc1 = nn.Linear(2, 2)\n\n    def forward(self, x):\n        return fc1(x)\n", "`self.fc1 = ...`"),
    ("message-layer-made-when-called", EMPTY, f"{HEAD}        self.n = 3\n\n    def forward(self, x):\n        return nn.Linear(2, 2)(x)\n", "`nn.Linear(2, 2)(x)`"),
    ("message-weight-of-no-parameter", EMPTY, f"{HEAD}        self.weight = torch.randn(3, 2)\n\n    def forward(self, x):\n        return x @ self.weight\n", "self.weight = nn.Parameter(...)"),
    ("message-parameter-moved", EMPTY, f"{HEAD}        self.w = nn.Parameter(torch.randn(3)).to(device)\n\n    def forward(self, x):\n        return x * self.w\n", "nn.Parameter(torch.randn(3).to(device))"),
    ("message-parameters-read-once", EMPTY, "trained = filter(lambda p: p.requires_grad, net.parameters())\nprint(len(list(trained)))\noptimizer = torch.optim.Adam(trained, lr=1e-3)\n", "`trained`"),
    ("message-class-of-no-module", "AttributeError: 'Net' object has no attribute 'parameters'", "class Net:\n    def __init__(self):\n        self.one = nn.Linear(2, 2)\n\n    def forward(self, x):\n        return self.one(x)\n", "class Net(nn.Module):"),
    ("message-view-dropped", MATRICES.format("96x6 and 576x120"), f"{HEAD}        self.fc = nn.Linear(16 * 6 * 6, 120)\n\n    def forward(self, x):\n        x.view(-1, 576)\n        return self.fc(x)\n", "x = x.view(-1, 576)"),
    ("message-name-misspelt", MATRICES.format("1792x28 and 784x10"), "net = nn.Linear(784, 10)\nfor images, labels in loader:\n    imagse = images.view(64, -1)\n    out = net(images)\n    loss = criterion(out, labels)\n", "`imagse`"),
    ("message-not-flattened", MATRICES.format("1792x28 and 784x10"), "net = nn.Linear(784, 10)\nout = net(images)\nloss = criterion(out, labels)\n", "64 × 784"),
    ("message-column-for-a-row", MATRICES.format("6x1 and 6x36"), "net = nn.Linear(6, 36)\nout = net(values)\nprint(out)\n", "`nn.Linear(6, 36)`"),
    ("message-layer-twice", MATRICES.format("4x10 and 84x10"), f"{HEAD}        self.fc = nn.Linear(84, 10)\n\n    def forward(self, x):\n        return self.fc(x)\n\nhead = Head(84, 10)\n", "`Head(84, 10)`"),
    ("message-images-of-another-size", MATRICES.format("1x10240 and 7680x64"), "net = nn.Linear(512 * 3 * 5, 64)\nout = net(features)\nprint(out)\n", "512 × 20 = 10240"),
    ("message-batch-cut", "ValueError: Expected input batch_size (12) to match target batch_size (4).", "x = x.view(-1, 24)\nout = fc(x)\nloss = criterion(out, labels)\n", "take 72 features"),
    ("message-channels-last", "RuntimeError: Given groups=1, weight of size [8, 3, 3, 3], expected input[4, 32, 32, 3] to have 3 channels, but got 32 channels instead", "", "x.permute(0, 3, 1, 2)"),
    ("message-classes-apart", "ValueError: Target size (torch.Size([2, 32, 4])) must be the same as input size (torch.Size([2, 20, 4]))", "", "32 classes"),
    ("message-counts-apart", REPEATED.format("[1, 1]", "[10, 1]"), "", "10 and the target 1 values"),
    ("message-columns-repeated", REPEATED.format("[64, 4]", "[64, 1]"), "", "`log_prob = dist.log_prob(action).sum(-1, keepdim=True)`"),
    ("message-map-of-outputs", "ValueError: Using a target size (torch.Size([4])) that is different to the input size (torch.Size([4, 169])) is deprecated.", "", "13 × 13"),
    ("message-labels-beyond", "RuntimeError: CUDA error: device-side assert triggered\noutputs: torch.Size([8, 3])\ntensor([5, 0, 10, 5])", "", "Your labels hold 5, 10"),
    ("message-state-kept", TWICE, f"{HEAD}        self.lstm = nn.LSTM(4, 8)\n        self.hidden = start()\n\n    def forward(self, x):\n        out, self.hidden = self.lstm(x, self.hidden)\n        return out\n", "`self.hidden`"),
    ("message-backward-run-again", TWICE, "out = net(x)\nloss = criterion(out, y)\nloss.backward()\n", "notebook"),
    ("message-stepped-between", "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.FloatTensor [8, 1]], which is output 0 of TBackward, is at version 2; expected version 1 instead.", "for x in loader:\n    d_loss = bce(D(x), D(G(z)))\n    g_loss = -D(G(z)).mean()\n    d_loss.backward(retain_graph=True)\n    opt_d.step()\n    g_loss.backward()\n    opt_g.step()\n", "`opt_d.step()`"),
    ("message-loss-remade", "AssertionError: No inf checks were recorded for this optimizer.", "def cost(out, y):\n    parts = compare(out, y)\n    w = torch.tensor(parts, requires_grad=True)\n    return w\n", "torch.stack"),
    ("message-measured-with-graphs", "the memory grows until RuntimeError: CUDA out of memory", "def validate(model, loader):\n    model.eval()\n    for x, y in loader:\n        out = model(x)\n        print(out)\n", "@torch.no_grad()"),
    ("message-forward-returns-nothing", "TypeError: cross_entropy_loss(): argument 'input' (position 1) must be Tensor, not NoneType", f"{HEAD}        self.fc = nn.Linear(2, 2)\n\n    def forward(self, x):\n        x = self.fc(x)\n", "`return x`"),
    ("message-module-given-a-tensor", "TypeError: linear(): argument 'input' (position 1) must be Tensor, not ReLU", f"{HEAD}        self.fc = nn.Linear(2, 2)\n\n    def forward(self, x):\n        return self.fc(nn.ReLU(x))\n", "`nn.ReLU()(x)`"),
    ("message-cut-by-a-line", "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "y = net(x)\nz = y.detach()\nz.sum().backward()\n", "`z = y.detach()`"),
    ("message-made-without-gradients", "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "for x, y in loader:\n    with torch.no_grad():\n        out = net(x)\n        loss = criterion(out, y)\n    loss.backward()\n    optimizer.step()\n", "torch.no_grad()"),
    ("message-head-frozen-too", "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", "model.fc = nn.Linear(512, 2)\nfor p in model.parameters():\n    p.requires_grad = False\nloss = criterion(model(x), y)\nloss.backward()\n", "model.fc.requires_grad_(True)"),
    ("message-leaf-moved", "why is the grad None?", "w = torch.randn(3, requires_grad=True).cuda()\nloss = (w * x).sum()\nloss.backward()\nprint(w.grad)\n", "`w.requires_grad_()`"),
    ("message-loss-not-returned", "model is not learning in lightning, the loss stays the same", "class Lit(pl.LightningModule):\n    def training_step(self, batch, n):\n        loss = self.net(batch).mean()\n        self.log('loss', loss)\n".replace("LightningModule", "LightningModule"), "`return loss`"),
    ("message-images-apart", "RuntimeError: stack expects each tensor to be equal size, but got [3, 544, 386] at entry 0 and [3, 794, 586] at entry 1", "", "Resize((H, W))"),
    ("message-modes-apart", "RuntimeError: stack expects each tensor to be equal size, but got [3, 64, 64] at entry 0 and [1, 64, 64] at entry 7", "", "sample 7"),
    ("message-lengths-apart", "RuntimeError: stack expects each tensor to be equal size, but got [5] at entry 0 and [1] at entry 1", "", "pad_sequence"),
    ("message-one-loss-per-device", "RuntimeError: grad can be implicitly created only for scalar outputs", "model = nn.DataParallel(model)\nloss = model(x, y)\nloss.backward()\n", "`loss = loss.mean()`"),
    ("message-accelerate-scales-itself", "I use accelerator.backward\nAssertionError: No inf checks were recorded prior to update.", "", "accelerator.clip_grad_norm_"),
    ("message-move-dropped", "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!", "for images, labels in loader:\n    images.cuda()\n    out = model(images)\n    loss = criterion(out, labels)\n", "images = images.cuda()"),
    ("message-written-in-place", "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.FloatTensor [8, 16]], which is output 0 of SigmoidBackward0, is at version 1; expected version 0 instead.", "def forward(self, x):\n    h = torch.sigmoid(self.one(x))\n    h[:, 0] = 0\n    return self.two(h)\n", "`h[:, 0] = 0`"),
    ("message-loss-made-with-tensors", "RuntimeError: Boolean value of Tensor with more than one value is ambiguous", "out = model(x)\nloss = nn.MSELoss(out, labels)\nloss.backward()\n", "criterion = nn.MSELoss()"),
    ("message-parameters-not-called", "TypeError: 'method' object is not iterable", "model = Net()\nopt = torch.optim.SGD(model.parameters, lr=0.1)\nfor x in loader:\n    pass\n", "`model.parameters()`"),
    ("message-classes-last", "RuntimeError: Expected target size [32, 5000], got [32, 20]", "logits = model(src)\nloss = criterion(logits, tgt)\nloss.backward()\n", "logits.transpose(1, 2)"),
    ("message-several-labels-each", "ValueError: Expected input batch_size (8) to match target batch_size (32)", "", "labels.argmax(1)"),
    ("message-one-step-apart", "ValueError: Expected input batch_size (1216) to match target batch_size (1280)", "", "64 × 19"),
    ("message-pixels-apart", "ValueError: Expected input batch_size (183001) to match target batch_size (187500)", "", "F.interpolate"),
    ("message-classes-for-a-batch", "ValueError: Expected input batch_size (182) to match target batch_size (2).\nthe output is [2,182,41,41]", "", "number of classes"),
    ("message-out-of-memory-in-measuring", 'Traceback (most recent call last):\n  File "train.py", line 9, in validate\n    copy = scores.clone()\nRuntimeError: CUDA error: out of memory', "", "`validate`"),
    ("message-layer-again", MATRICES.format("4x10 and 84x10"), "fc = nn.Linear(84, 10)\nout = fc(x)\nprint(out)\n", "`nn.Linear(84, 10)`"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message", "code", "named"), RAISED, ids=[c[0] for c in RAISED])
def test_a_message_is_explained_by_its_code(name: str, message: str, code: str, named: str) -> None:
    question = (
        f"What is wrong here?\n{message}\n```python\n{code}\n```" if code else f"help!\n{message}"
    )
    reply = answer(question, gather(question)).reply
    told = " ".join([reply.answer, *(f"{a.do} {a.code}" for a in reply.actions)])
    assert reply.claims[:1] == [name] and named in told
    assert "{" not in told and "the value" not in told


def test_the_names_of_the_own_line_are_used() -> None:
    text = """Traceback (most recent call last):
  File "train.py", line 31, in <module>
    loss = bce(scores, truth)
ValueError: Using a target size (torch.Size([16])) that is different to the input size (torch.Size([16, 1])) is deprecated. Please ensure they have the same size."""
    reply = answer(text, gather(text)).reply
    assert "`scores.squeeze(1)`, or `truth.unsqueeze(1)`" in reply.actions[0].do


MORE = [
    ("cause-optimizer-of-another", "the loss stays the same", "net_1 = Net()\noptimizer = torch.optim.SGD(net_0.parameters(), lr=0.1)\nfor x, y in loader:\n    net_1.train()\n    loss = criterion(net_1(x), y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n", "net_1.parameters()"),
    ("cause-column-against-one-unit", "the loss does not decrease", "net = nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 1))\ncriterion = nn.MSELoss()\nfor d in loader:\n    loss = criterion(net(d[:, :2]), d[:, 2])\n", "d[:, 2].unsqueeze(1)"),
    ("cause-time-by-reshape", "accuracy stays at chance", "lstm = nn.LSTM(28, 64)\nfor images, labels in loader:\n    out, _ = lstm(images.reshape(28, -1, 28))\n", "transpose"),
    ("cause-inputs-large", "the loss becomes nan", "ages = torch.tensor([[65.0], [70.0], [100.0]])\nmodel = nn.Linear(1, 1)\ncriterion = nn.MSELoss()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.001)\n", "0.00016"),
    ("cause-update-after-the-loop", "accuracy does not improve", "for epoch in range(9):\n    for x, y in train_loader:\n        out = net(x)\n        loss = criterion(out, y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n", "the last batch only"),
    ("cause-model-made-again", "the loss does not decrease", "for epoch in range(9):\n    net = Net()\n    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)\n    for x, y in loader:\n        optimizer.zero_grad()\n        loss = criterion(net(x), y)\n        loss.backward()\n        optimizer.step()\n", "`net = Net()`"),
    ("cause-rounded-before-the-loss", "the loss does not decrease", "for epoch in range(9):\n    out = net(x)\n    guess = torch.round(out)\n    loss = criterion(guess, y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n", "torch.round(out)"),
    ("cause-loss-negated", "the loss keeps increasing", "for x, y in loader:\n    loss = -criterion(net(x), y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n", "the opposite"),
    ("cause-nothing-but-linear", "the loss does not decrease", "model = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 1))\nprint(model(x))\n", "nn.ReLU()"),
    ("cause-rate-high-to-tune", "accuracy stays at chance", "model = BertForSequenceClassification.from_pretrained('bert')\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\nprint(model)\n", "1e-5 to 5e-5"),
    ("cause-index-ignored", "the model gets the same sample each time", "class Data(Dataset):\n    def __getitem__(self, idx):\n        return load(self.files[0]), self.labels[idx]\n", "`self.files[idx]`"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "says", "code", "named"), MORE, ids=[c[0] for c in MORE])
def test_a_mistake_comes_before_what_may_be_one(
    name: str, says: str, code: str, named: str
) -> None:
    question = f"{says}\n```python\n{code}\n```"
    reply = answer(question, gather(question)).reply
    told = " ".join([reply.answer, *(f"{a.do} {a.code}" for a in reply.actions)])
    assert reply.claims[:1] == [name] and named in told and "{" not in told


def test_what_the_reader_finds_leads_and_its_cause_follows() -> None:
    code = program("nn.BCEWithLogitsLoss()", "torch.sigmoid(self.two(h))", units=1)
    question = f"the loss stays around 0.69\n```python\n{code}\n```"
    reply = answer(question, gather(question)).reply
    assert "FL606" in reply.answer and any("above 0.73" in a.do for a in reply.actions)


@pytest.mark.parametrize(
    "code",
    [
        "model = Net()\nnet = nn.DataParallel(model)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor x, y in loader:\n    loss = criterion(net(x), y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n",
        "lstm = nn.LSTM(28, 64)\nfor images, labels in loader:\n    out, _ = lstm(images.reshape(-1, 28, 28).permute(1, 0, 2))\n",
        "hidden = None\nfor x, y in loader:\n    out, hidden = rnn(x, hidden)\n    hidden = hidden.detach()\n    loss = criterion(out, y)\n    loss.backward()\n",
        "for fold in range(5):\n    model = Net()\n    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n    for x, y in loader:\n        optimizer.zero_grad()\n        loss = criterion(model(x), y)\n        loss.backward()\n        optimizer.step()\n",
        "for p in model.parameters():\n    p.requires_grad = False\nmodel.fc = nn.Linear(8, 2)\nloss = criterion(model(x), y)\nloss.backward()\n",
        "for x, y in loader:\n    out = net(x)\n    loss = criterion(out, y)\n    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n    right += (out.round() == y).sum()\n",
        "criterion = nn.CosineSimilarity()\nfor x, y in loader:\n    loss = -criterion(net(x), y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n",
        "class Data(Dataset):\n    def __getitem__(self, idx):\n        return self.pairs[idx][0], self.pairs[idx][1]\n",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)\nmodel = nn.Linear(1, 1)\ncriterion = nn.MSELoss()\nx = torch.randn(100, 1) * 10\n",
    ],
)
def test_nothing_is_made_of_what_is_in_order(code: str) -> None:
    found = causes_in(code, "the loss is stuck, memory grows and it is slow", (), "")
    assert not any(c.likely for c in found)


@pytest.mark.parametrize("says", ["the loss is nan", "accuracy is stuck", "why is it so slow?"])
def test_a_sound_program_has_no_likely_cause(says: str) -> None:
    sound = program("nn.CrossEntropyLoss()")
    assert not any(cause.likely for cause in causes_in(sound, says, ()))


def test_a_sigmoid_before_its_own_loss_explains_nothing() -> None:
    code = program("nn.BCELoss()", "torch.sigmoid(self.two(h))", units=1)
    assert not any(c.likely for c in causes_in(code, "the loss does not decrease", ()))


def test_causes_of_one_complaint_do_not_answer_another() -> None:
    code = "torch.autograd.set_detect_anomaly(True)\n" + program("nn.CrossEntropyLoss()")
    assert causes_in(code, "the loss does not decrease", ()) == []
    assert causes_in(code, "how do I save this model?", ()) == []


def test_recurrent_layers_and_their_axes() -> None:
    code = "lstm = nn.LSTM(4, 8)\nout, _ = lstm(x)\nlogits = fc(out[:, -1, :])\n"
    assert "last of the wrong axis" in facts_of(parsed(code))  # type: ignore[arg-type]
    code = code.replace("8)", "8, batch_first=True)")
    assert "last of the wrong axis" not in facts_of(parsed(code))  # type: ignore[arg-type]


def test_losses_that_are_added_up_hold_their_graphs() -> None:
    code = "loss = 0\nfor i in range(n):\n    loss += criterion(net(xs[i]), ys[i])\nloss.backward()\noptimizer.step()\n"
    (first, *_) = causes_in(code, "gpu memory keeps increasing", ())
    assert first.claim.id == "cause-losses-added-up" and first.read["end"] == "4"


def test_what_costs_memory_is_no_answer_to_a_nan() -> None:
    code = "for x, y in loader:\n    opt.zero_grad()\n    loss = model(x, y)\n    loss.backward()\n    opt.step()\n    torch.cuda.empty_cache()\n"
    question = f"I fine-tune a 4-bit model, and the loss becomes nan after one backward. Is there a way to fine-tune a 4 bit model?\n```\n{code}```"
    assert "empty_cache" not in answer(question, gather(question)).reply.answer


def test_every_complaint_and_fact_is_known() -> None:
    complaints = {c for claim in points() for c in claim.explains}
    assert complaints <= COMPLAINTS
    assert symptoms("my loss is nan") == {"nan"} and not symptoms("how do I save a model?")


WRAPPED = [
    ">>> y = net(x)\n>>> z = y.detach()\n>>> z.sum().backward()\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\nwhy?",
    "why?\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n 1 y = net(x)\n 2 z = y.detach()\n 3 if x.size(0) > 1:\n 4     z.sum().backward()\n",
    "why?\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n> y = net(x)\n> z = y.detach()\n> w = z * 2\n> w = z.sum()\n> z.sum().backward()\n",
    "<p>why? element 0 of tensors does not require grad and does not have a grad_fn</p><pre><code>y = net(x)\nz = y.detach()\nif x.size(0) &gt; 1:\n    z.sum().backward()\n</code></pre>",
    "In [3]: y = net(x)\nIn [4]: z = y.detach()\nIn [5]: z.sum().backward()\nRuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\nwhy?",
]


@pytest.mark.parametrize("text", WRAPPED)
def test_code_is_read_in_whatever_it_was_wrapped(text: str) -> None:
    assert answer(text, gather(text)).reply.claims == ["message-cut-by-a-line"]


def test_a_traceback_of_a_notebook_keeps_its_numbers() -> None:
    text = "Cell In[5], line 9\n      7 a = 1\n      8 b = 2\n----> 9 loss.backward()\n     10 c = 3\n     11 d = 4\n"
    assert unwrapped(text) == text
