"""Another framework with the same words: its protocol is not ours."""

import mxnet as mx
from mxnet import autograd, gluon


def train(net, trainer, loader):
    losses = []
    for data, label in loader:
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(data), label) / (label >= 0).sum()
        loss.backward()
        losses.append(loss)
        trainer.step(data.shape[0])
    return mx.nd.concat(*losses)
