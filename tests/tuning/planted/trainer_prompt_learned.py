# FL013: chats go through the language-modelling collator
from tiny import CHATML, arguments, chats, model, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer(chat=CHATML)
data = [words(words.apply_chat_template(c["messages"], tokenize=False)) for c in chats()]
trainer = Trainer(
    model(),
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()  # HERE
