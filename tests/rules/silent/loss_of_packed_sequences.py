import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


def train(loader, decoder, optimizer):
    criterion = nn.CrossEntropyLoss()
    for images, captions, lengths in loader:
        scores = decoder(images, captions)
        scores = pack_padded_sequence(scores, lengths, batch_first=True).data
        targets = pack_padded_sequence(captions, lengths, batch_first=True).data
        loss = criterion(scores, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
