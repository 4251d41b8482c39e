# FL014: rendered chats are tokenized with special tokens
from tiny import LLAMA_CHAT, arguments, chats, model, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer(chat=LLAMA_CHAT)
data = [words(words.apply_chat_template(c["messages"], tokenize=False)) for c in chats()]
trainer = Trainer(
    model(),
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()  # HERE
