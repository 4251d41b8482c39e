# FL028: every sample of a sequence classification has the same class
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorWithPadding, LlamaForSequenceClassification, Trainer

words = tokenizer()
config = model().config
config.num_labels = 3
data = [{**words(t), "labels": 2} for t in texts()]
trainer = Trainer(
    LlamaForSequenceClassification(config),
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorWithPadding(words),
)
trainer.train()  # HERE
