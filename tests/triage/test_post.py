"""A post is taken apart once: the rest of triage reads the part that it needs."""

from __future__ import annotations

from fallline.triage.answer import answer
from fallline.triage.asked import Asked
from fallline.triage.evidence import gather
from fallline.triage.numbers import shown
from fallline.triage.post import Post

POST = """Training fails after one epoch

### Search before asking
- [x] I have searched the issues.

It runs for an epoch.
```python
for x, y in loader:
    loss = model(x, y)
    loss.backward()
    optimizer.step()
```
```
Epoch [1][50/1200]  lr: 1.0e-03, loss: 1.9676, grad_norm: 3.1
Epoch [1][100/1200]  lr: 1.0e-03, loss: 1.6247, grad_norm: 2.9
Epoch [1][150/1200]  lr: 1.0e-03, loss: nan, grad_norm: nan
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
ValueError: loss is not finite
```
```
python train.py \\
    --fp16 \\
    --learning_rate 1e-3 \\
    --batch_size 8
```
- torch 2.0.1
- Python 3.10.2
- CUDA 11.8.0

What is the reason?
"""


def _kind_of(post: Post, line: str) -> str:
    return next(k for text, k in zip(post.lines, post.kinds, strict=True) if line in text)


def test_every_line_has_its_kind() -> None:
    post = Post.of(POST)
    kinds = {
        "It runs for an epoch": "prose",
        "I have searched": "form",
        "loss.backward()": "code",
        "[1][100/1200]": "log",
        'File "train.py"': "traceback",
        "main()": "traceback",
        "ValueError": "traceback",
        "--fp16": "config",
        "torch 2.0.1": "environment",
        "What is the reason": "prose",
    }
    assert {line: _kind_of(post, line) for line in kinds} == kinds


def test_the_parts_are_read_where_they_are_needed() -> None:
    post = Post.of(POST)
    assert Asked.of(post.prose).questions == ("It runs for an epoch. What is the reason?",)
    assert post.code.startswith("for x, y") and "Epoch" not in post.code
    assert "2.0.1" not in post.evidence and "--fp16" in post.evidence
    assert "searched" not in post.prose and "loss.backward" not in post.prose


def test_a_fence_within_a_line_opens_no_block() -> None:
    post = Post.of("It stops.\n```exit code 1```\nWe use\n```torch 2.0```\nWhat can I do?")
    assert post.code == "" and "What can I do?" in post.prose


def test_dictionaries_of_a_log_are_not_code() -> None:
    rows = "\n".join(f"{{'loss': {n}.5, 'epoch': 0.{n}}}" for n in range(1, 5))
    assert set(Post.of(f"Is it normal?\n```\n{rows}\n```").kinds) == {"prose", "fence", "log"}


def test_a_sentence_that_names_a_version_is_prose() -> None:
    assert Post.of("Hello.\ntorch 2.0.1\nWhy does it fail?").only("prose").count("torch") == 1


def test_the_log_says_where_it_begins() -> None:
    assert "from epoch 1, iteration 150 on" in shown(POST)["loss nan"]
    assert "norm nan sometimes" not in shown(POST)  # it is not the scale that looks for its size
    again = "\n".join(f"Epoch [{e}][{b}/100] loss: {9 - e}.0" for e in (1, 2) for b in (50, 100))
    assert "loss falls" in shown(again)  # the next epoch counts from its start, and is the same run


def test_the_last_of_two_tracebacks_is_asked_about() -> None:
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    main()\n'
    first = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.00 GiB total capacity; 9.00 GiB already allocated; 5.00 MiB free; 9.50 GiB reserved in total by PyTorch)"
    last = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x2048 and 512x10)"
    apart = f"{trace}{first}\n\nI made the batch smaller, now I get\n\n{trace}{last}\n\nWhat now?"
    assert "2048" in answer(apart, gather(apart)).reply.answer
    chained = f"{trace}{last}\n\nDuring handling of the above exception, another exception occurred:\n\n{trace}{first}"
    assert Post.of(chained).last_traceback == 0


def test_versions_are_no_evidence() -> None:
    asked = "My loss is NaN from the first step, why?"
    listed = "\n".join(
        ["Package  Version", "deepspeed  0.9.1", "lightning  2.0.1", "bitsandbytes  0.37.2"]
    )
    both = f"{asked}\n```\n{listed}\n```"
    assert answer(both, gather(both)).reply.answer == answer(asked).reply.answer
