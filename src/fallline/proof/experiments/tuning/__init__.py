"""Experiments of the specialist for fine-tuning."""
