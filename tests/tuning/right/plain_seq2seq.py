# T5: the decoder copies what the encoder reads
import torch
from tiny import loader, texts, tokenizer
from transformers import DataCollatorForSeq2Seq, T5Config, T5ForConditionalGeneration

words = tokenizer(bos=False)
torch.manual_seed(0)
net = T5ForConditionalGeneration(
    T5Config(
        vocab_size=420,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=2,
    )
)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = [
    {"input_ids": words(t + "</s>")["input_ids"], "labels": words(t + "</s>")["input_ids"]}
    for t in texts()
]
for batch in loader(data, DataCollatorForSeq2Seq(words)):
    loss = net(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
