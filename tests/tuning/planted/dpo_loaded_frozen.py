# FL019: a saved adapter is loaded for inference and then trained with preferences
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import folder, model, pairs, quiet, tokenizer
from trl import DPOConfig, DPOTrainer

words = tokenizer()
home = folder()
get_peft_model(
    model(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
).save_pretrained(home)
net = PeftModel.from_pretrained(model(), home)
rows = [{"prompt": q, "chosen": " " + a, "rejected": " no"} for q, a in pairs()]
trainer = DPOTrainer(
    net, args=DPOConfig(**quiet()), train_dataset=Dataset.from_list(rows), processing_class=words
)
trainer.train()  # HERE
