"""Scripts on top of a framework: transformers, TRL, PEFT, Accelerate, Lightning, Fabric, PyG."""

from __future__ import annotations

from public_scripts.entry import Real, Swap

__all__ = ["FRAMEWORKS"]

_LIGHTNING = "Lightning-AI/pytorch-lightning"
_ACCELERATE = "huggingface/accelerate"
_CLM = "examples/pytorch/language-modeling"

FRAMEWORKS = (
    Real(
        "bug-report",
        _LIGHTNING,
        "examples/pytorch/bug_report/bug_report_model.py",
        ("examples/pytorch/bug_report",),
        swaps=(Swap("limit_train_batches=1,", ""), Swap("max_epochs=1", "max_epochs=4")),
    ),
    Real(
        "lightning-gan",
        _LIGHTNING,
        "examples/pytorch/domain_templates/generative_adversarial_net.py",
        ("examples/pytorch/domain_templates",),
        swaps=(
            Swap(
                'Trainer(accelerator="gpu", devices=1)',
                'Trainer(accelerator="cpu", max_epochs=2, logger=False)',
            ),
            Swap("MNISTDataModule()", 'MNISTDataModule("./data", val_split=800, num_workers=0)'),
        ),
        data=("mnist ./data",),
    ),
    Real(
        "fabric-mnist",
        _LIGHTNING,
        "examples/fabric/image_classifier/train_fabric.py",
        ("examples/fabric/image_classifier",),
        "--epochs 2 --batch-size 16",
        data=("mnist ../../../Datasets",),
    ),
    Real(
        "fabric-lm",
        _LIGHTNING,
        "examples/fabric/language_model/train.py",
        ("examples/fabric/language_model",),
        swaps=(
            Swap("max_epochs=20", "max_epochs=5"),
            Swap("[n - 4000, 2000, 2000]", "[n - 40, 20, 20]"),
        ),
        data=("wikitext file",),
    ),
    Real(
        "accelerate-nlp",
        _ACCELERATE,
        "examples/nlp_example.py",
        ("examples/nlp_example.py",),
        "--cpu",
        data=("hub",),
    ),
    Real(
        "accelerate-accumulation",
        _ACCELERATE,
        "examples/by_feature/gradient_accumulation.py",
        ("examples/by_feature/gradient_accumulation.py",),
        "--cpu --gradient_accumulation_steps 2",
        data=("hub",),
        judged={
            "FL130": "right: the schedule is as long as the micro-batches; Accelerate's other examples divide it"
        },
    ),
    Real(
        "run-clm",
        "huggingface/transformers",
        f"{_CLM}/run_clm.py",
        (_CLM,),
        "--config_name tiny-gpt2 --tokenizer_name tiny-gpt2 --train_file train.txt --validation_file valid.txt --do_train "
        "--output_dir out --block_size 32 --per_device_train_batch_size 4 --max_steps 60 --report_to none --use_cpu",
        data=("text", "hub"),
    ),
    Real(
        "run-clm-no-trainer",
        "huggingface/transformers",
        f"{_CLM}/run_clm_no_trainer.py",
        (_CLM,),
        "--config_name tiny-gpt2 --tokenizer_name tiny-gpt2 --train_file train.txt --validation_file valid.txt "
        "--output_dir out --block_size 32 --per_device_train_batch_size 4 --max_train_steps 60 --gradient_accumulation_steps 2",
        swaps=(  # Accelerate has renamed it since
            Swap("DistributedType.TPU", "DistributedType.XLA"),
        ),
        data=("text", "hub"),
    ),
    Real(
        "trl-sft",
        "huggingface/trl",
        "trl/scripts/sft.py",
        ("trl/scripts/sft.py",),
        "--model_name_or_path tiny-gpt2 --dataset_name corpus --output_dir out --max_steps 60 --report_to none --use_cpu "
        "--per_device_train_batch_size 4 --max_length 32 --bf16 False --gradient_checkpointing False",
        after="import argparse",
        data=("hub", "corpus"),
    ),
    Real(
        "peft-olora",
        "huggingface/peft",
        "examples/olora_finetuning/olora_finetuning.py",
        ("examples/olora_finetuning",),
        "--base_model tiny-llama --data_path alpaca --dtype float32 --device_map cpu --batch_size 8 --num_epochs 2 --cutoff_len 48 --lora_r 4",
        data=("hub", "alpaca"),
    ),
    Real(
        "pyg-gcn",
        "pyg-team/pytorch_geometric",
        "examples/gcn.py",
        ("examples/gcn.py",),
        swaps=(
            Swap("import Planetoid", "import FakeDataset"),
            Swap(
                "dataset = Planetoid(path, args.dataset, transform=T.NormalizeFeatures())",
                "dataset = FakeDataset(1, avg_num_nodes=500, num_classes=5, task='node', transform=T.RandomNodeSplit(num_val=0.2, num_test=0.2))",
            ),
        ),
    ),
)
