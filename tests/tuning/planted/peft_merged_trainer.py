# FL019: adapters are merged for an evaluation and never taken out again
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, texts, tokenizer
from transformers import DataCollatorForLanguageModeling, Trainer

words = tokenizer()
net = get_peft_model(
    model(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
)
net.merge_adapter()
data = [words(t + "</s>") for t in texts()]
trainer = Trainer(
    net,
    arguments(),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()  # HERE
