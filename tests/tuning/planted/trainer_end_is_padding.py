# FL010: the stock collator masks the end token, because it is the padding token
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer(pad=None)
words.pad_token = words.eos_token
data = [words(t + words.eos_token) for t in texts()]
trainer = Trainer(
    model(),
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()  # HERE
