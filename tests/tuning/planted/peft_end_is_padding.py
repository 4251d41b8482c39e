# FL010: LoRA with the stock collator and the end token as padding
import torch
from peft import LoraConfig, get_peft_model
from tiny import loader, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling

words = tokenizer(pad="</s>")
net = get_peft_model(
    model(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4)
data = [words(t + "</s>") for t in texts()]
for batch in loader(data, DataCollatorForLanguageModeling(words, mlm=False)):
    loss = net(**batch).loss  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
