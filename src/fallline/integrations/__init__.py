"""fallline where people already train and look: frameworks and loggers. Each module imports its package, and only its own.

lightning       FalllineCallback, ExactAccumulation: for Trainer of `lightning` and of `pytorch_lightning`
fabric          FalllineCallback for Lightning Fabric
transformers    FalllineCallback for the Hugging Face Trainer
accelerate      watched, exact_accumulation: for an Accelerator

logger          what a logger is, and the thread that feeds it
tensorboard, wandb, mlflow, trackio     the loggers
"""
