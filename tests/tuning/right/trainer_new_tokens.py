# a vocabulary that grew, all weights trained
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer()
net = model(vocabulary=len(words))
words.add_tokens(["<tool>"])
net.resize_token_embeddings(len(words))
data = [words(t + " <tool></s>") for t in texts()]
trainer = Trainer(
    net,
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()
