# after tloen/alpaca-lora's finetune.py
import transformers
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer

PROMPT = "Below is an instruction that describes a task.\n\n### Instruction:\n{}\n\n### Response:\n"
CUTOFF = 200
words = tokenizer()
words.padding_side = "left"


def tokenize(text, add_eos_token=True):
    result = words(text, truncation=True, max_length=CUTOFF)
    if len(result["input_ids"]) < CUTOFF and add_eos_token:
        result["input_ids"].append(words.eos_token_id)
        result["attention_mask"].append(1)
    result["labels"] = result["input_ids"].copy()
    return result


def prepare(question, answer):
    full = tokenize(PROMPT.format(question) + answer)
    start = len(tokenize(PROMPT.format(question), add_eos_token=False)["input_ids"])
    full["labels"] = [-100] * start + full["labels"][start:]
    return full


lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM")  # fmt: skip
net = get_peft_model(model(), lora)
trainer = transformers.Trainer(
    net,
    arguments(gradient_accumulation_steps=2, learning_rate=3e-4),
    train_dataset=[prepare(q, a) for q, a in pairs()],
    data_collator=transformers.DataCollatorForSeq2Seq(words, pad_to_multiple_of=8, padding=True),
)
net.config.use_cache = False
trainer.train()
