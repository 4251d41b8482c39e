"""A transformers Trainer divides by the accumulation count itself."""
from torch import nn
from transformers import Trainer


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits.view(-1, 2), labels.view(-1))
        loss = loss / self.args.gradient_accumulation_steps  # FL129
        return (loss, outputs) if return_outputs else loss
