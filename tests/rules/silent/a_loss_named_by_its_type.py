"""A model of transformers whose `loss_type` says that its loss does not shift: the decoder is fed the labels shifted right (FL012)."""

from torch import nn
from transformers import PreTrainedModel


class SpeechForConditionalGeneration(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = nn.Linear(config.hidden_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.loss_type = "ForMaskedLM"

    def forward(self, input_ids, decoder_input_ids=None, labels=None):
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = self._shift_right(labels)
        logits = self.lm_head(self.model(decoder_input_ids))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size)
        return loss, logits
