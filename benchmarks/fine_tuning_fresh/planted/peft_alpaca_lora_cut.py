# FL020: after tloen/alpaca-lora's finetune.py, with a cutoff that is shorter than many prompts
import transformers
from peft import LoraConfig, get_peft_model
from tiny import arguments, model, pairs, tokenizer

PROMPT = "Below is an instruction that describes a task.\n\n### Instruction:\n{}\n\n### Response:\n"
CUTOFF = 84
words = tokenizer()
words.padding_side = "left"


def tokenize(text, add_eos_token=True):
    result = words(text, truncation=True, max_length=CUTOFF)
    if len(result["input_ids"]) < CUTOFF and add_eos_token:
        result["input_ids"].append(words.eos_token_id)
        result["attention_mask"].append(1)
    result["labels"] = result["input_ids"].copy()
    return result


def prepare(number, question, answer):
    question += " please" * (number % 4)
    full = tokenize(PROMPT.format(question) + answer)
    start = len(tokenize(PROMPT.format(question), add_eos_token=False)["input_ids"])
    full["labels"] = [-100] * start + full["labels"][start:]
    return full


lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
trainer = transformers.Trainer(
    get_peft_model(model(), lora),
    arguments(learning_rate=3e-4),
    train_dataset=[prepare(i, q, a) for i, (q, a) in enumerate(pairs())],
    data_collator=transformers.DataCollatorForSeq2Seq(words, pad_to_multiple_of=8, padding=True),
)
trainer.train()  # HERE
