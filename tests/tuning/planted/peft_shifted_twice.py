# FL012: LoRA on labels that were shifted by hand
import torch
from peft import LoraConfig, get_peft_model
from tiny import loader, model, texts, tokenizer

words = tokenizer()
net = get_peft_model(
    model(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4)
stream = torch.tensor(words(" ".join(texts()))["input_ids"])
rows = stream[: len(stream) // 33 * 33].view(-1, 33)
for batch in loader(list(rows), batch=2):
    loss = net(input_ids=batch[:, :-1], labels=batch[:, 1:]).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
