# distillation: the teacher is fixed
import copy

import torch
from tiny import loader, model, texts, tokenizer
from torch.nn import functional as F

words = tokenizer()
teacher = model("gpt2").eval().requires_grad_(False)
student = copy.deepcopy(teacher).train().requires_grad_(True)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)


def collate(samples):
    return words([s + "</s>" for s in samples], padding=True, return_tensors="pt")


for batch in loader(texts(), collate):
    with torch.no_grad():
        wanted = teacher(**batch).logits.log_softmax(-1)
    got = student(**batch).logits.log_softmax(-1)
    each = F.kl_div(got, wanted, log_target=True, reduction="none").sum(-1)
    loss = (each * batch["attention_mask"]).sum() / batch["attention_mask"].sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
