"""The proof room: every rule about behaviour and every stated fact is a small measurement that anyone can repeat.

    experiment.py     what an experiment is, and the registry
    experiments/      one file for one rule, a few files of related facts, in their specialist's folder
    measure.py        runs them, each in a process of its own (processes.py); ranks.py gives one several ranks
    record.py         what came of them, and evidence.json: what was last recorded, read by docs, reports and answers
    picture.py        what there is to draw; plot.py draws it in a terminal, figure.py as SVG, text.py puts it into words

`fallline prove` is the door. Nothing here is imported by `fallline check`, and only experiments import torch.
"""
