# FL017: a padding token was added and the model was not resized
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer(pad=None)
net = model(vocabulary=len(words))
words.add_special_tokens({"pad_token": "[PAD]"})
data = [words(t + "</s>") for t in texts()]
trainer = Trainer(
    net,
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()  # HERE
