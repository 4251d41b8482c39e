"""The proof room: every rule about behaviour and every stated fact is a small measurement that anyone can repeat.

    experiment.py     what an experiment is, and the registry
    experiments/      one file for one rule, a few files of related facts, in their specialist's folder
    evidence.json     what the experiments measured when they were last recorded; read by docs, reports and answers

`fallline prove` runs them. Nothing here is imported by `fallline check`.
"""
