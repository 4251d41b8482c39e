# after PEFT's DoRA example: texts padded to one length with the end token, which the stock collator masks; none of them has an end
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer()
words.pad_token = words.eos_token
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
net = get_peft_model(model(), LoraConfig(use_dora=True, r=8, lora_alpha=16, target_modules=targets))


def tokenize(text):
    inputs = words(text, padding="max_length", truncation=True, max_length=40)
    inputs["labels"] = inputs["input_ids"].copy()
    return inputs


trainer = Trainer(
    net,
    arguments(gradient_accumulation_steps=2),
    train_dataset=[tokenize(t) for t in texts()],
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()
