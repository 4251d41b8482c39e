# BERT: labels where tokens are masked
import torch
from tiny import loader, texts, tokenizer
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

words = tokenizer()
words.add_special_tokens({"mask_token": "<mask>"})
torch.manual_seed(0)
net = BertForMaskedLM(
    BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = [words(t, return_special_tokens_mask=True) for t in texts()]
for batch in loader(data, DataCollatorForLanguageModeling(words, mlm_probability=0.3)):
    loss = net(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
