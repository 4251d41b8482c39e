# FL019: the adapter is merged into the base before training goes on
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny import model, quiet, texts, tokenizer
from trl import SFTConfig, SFTTrainer

words = tokenizer()
net = get_peft_model(
    model(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
)
net.merge_adapter()
data = Dataset.from_list([{"text": t} for t in texts()])
trainer = SFTTrainer(net, args=SFTConfig(**quiet()), train_dataset=data, processing_class=words)
trainer.train()  # HERE
