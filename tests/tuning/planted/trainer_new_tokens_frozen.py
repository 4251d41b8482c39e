# FL018: the vocabulary grew, and only the last layer is trained
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer()
net = model(vocabulary=len(words))
words.add_tokens(["<tool>", "<result>"])
net.resize_token_embeddings(len(words))  # HERE
for name, parameter in net.named_parameters():
    parameter.requires_grad = "layers.1." in name
data = [words(t + " <tool></s>") for t in texts()]
trainer = Trainer(
    net,
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()
