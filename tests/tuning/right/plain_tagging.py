# token classification: a tag for each token
import torch
from tiny import loader, texts, tokenizer
from transformers import BertConfig, BertForTokenClassification, DataCollatorForTokenClassification

words = tokenizer()
torch.manual_seed(0)
net = BertForTokenClassification(
    BertConfig(
        vocab_size=420,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=4,
    )
)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = [{**words(t), "labels": [i % 4 for i in words(t)["input_ids"]]} for t in texts()]
for batch in loader(data, DataCollatorForTokenClassification(words)):
    loss = net(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
