# FL010: after tloen/alpaca-lora's finetune.py, with the end token as padding and labels masked by token
import transformers
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer

PROMPT = "### Instruction:\n{}\n\n### Response:\n"
words = tokenizer(pad="</s>")
words.padding_side = "left"


def tokenize(question, answer):
    start = len(words(PROMPT.format(question))["input_ids"])
    result = words(PROMPT.format(question) + answer, truncation=True, max_length=128)
    result["input_ids"].append(words.eos_token_id)
    result["attention_mask"].append(1)
    result["labels"] = [-100] * start + result["input_ids"][start:]
    return result


class Collator(transformers.DataCollatorForSeq2Seq):
    def __call__(self, features, return_tensors=None):
        batch = super().__call__(features, return_tensors)
        batch["labels"][batch["input_ids"] == words.pad_token_id] = -100
        return batch


lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
trainer = transformers.Trainer(
    get_peft_model(model(), lora),
    arguments(gradient_accumulation_steps=2, learning_rate=3e-4),
    train_dataset=[tokenize(q, a) for q, a in pairs()],
    data_collator=Collator(words, pad_to_multiple_of=8, return_tensors="pt", padding=True),
)
trainer.train()  # HERE
