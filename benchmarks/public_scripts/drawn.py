"""Scripts that were drawn by lot from well-used repositories of different kinds, before anybody here had run them."""

from __future__ import annotations

from public_scripts.entry import Real, Swap

__all__ = ["DRAWN"]

_BURGERS = "Burgers Equation/Burgers Inference (PyTorch).ipynb"
_MAE = "models_mae.py"
_UNET = "unet/unet_model.py"
_SIZES = (("64", "8"), ("128", "16"), ("256", "32"), ("512", "64"), ("1024", "128"))

DRAWN = (
    Real(
        "nerf",
        "yenchenlin/nerf-pytorch",
        "run_nerf.py",
        (
            "run_nerf.py",
            "run_nerf_helpers.py",
            "load_blender.py",
            "load_llff.py",
            "load_deepvoxels.py",
            "load_LINEMOD.py",
            "configs/lego.txt",
        ),
        "--config configs/lego.txt --N_rand 64 --N_samples 8 --N_importance 8 --netwidth 32 --netwidth_fine 32 --netdepth 4 --netdepth_fine 4 "
        "--precrop_iters 0 --i_print 20",
        swaps=(
            Swap("'torch.cuda.FloatTensor'", "'torch.FloatTensor'"),
            Swap("N_iters = 200000 + 1", "N_iters = 120 + 1"),
        ),
        data=("blender",),
    ),
    Real(
        "unet",
        "milesial/Pytorch-UNet",
        "train.py",
        ("train.py", "evaluate.py", "unet", "utils"),
        "--epochs 3 --batch-size 4 --amp --scale 1 --validation 20 --learning-rate 1e-4",
        swaps=tuple(Swap(old, new, _UNET) for old, new in _SIZES),
        data=("masks",),
    ),
    Real(
        "lightning-autoencoder",
        "Lightning-AI/pytorch-lightning",
        "examples/pytorch/basics/autoencoder.py",
        ("examples/pytorch/basics",),
        "--trainer.max_epochs=3 --trainer.accelerator=cpu --trainer.logger=False",
        swaps=(
            Swap("[55000, 5000]", "[800, 160]"),
            Swap("lightning.pytorch.demos.mnist_datamodule", "torchvision.datasets"),
        ),
        data=("mnist ../../Datasets",),
    ),
    Real(
        "conv-tasnet",
        "kaituoxu/Conv-TasNet",
        "src/train.py",
        ("src",),
        "--train_dir wav/tr --valid_dir wav/cv --segment 0.25 --N 32 --B 16 --H 32 --X 2 --R 2 --use_cuda 0 --epochs 10 --batch_size 8 --num_workers 2 "
        "--shuffle 1 --print_freq 3",
        swaps=(Swap("self.model.module", "self.model", "src/solver.py"),),
        data=("speakers",),
        stubs=("librosa",),
        judged={"FL402": "right: `_run_one_epoch` also evaluates, without `no_grad`"},
    ),
    Real(
        "sac",
        "seungeunrho/minimalRL",
        "sac.py",
        ("sac.py",),
        swaps=(
            Swap("range(10000)", "range(12)"),
            Swap("s, _ = env.reset()", "s, _ = env.reset(seed=n_epi)"),
        ),
        stubs=("gym",),
    ),
    Real(
        "a3c",
        "ikostrikov/pytorch-a3c",
        "main.py",
        ("main.py", "train.py", "test.py", "envs.py", "model.py", "my_optim.py"),
        "--num-processes 1 --no-shared yes --num-steps 10",
        swaps=(
            Swap(
                "    env = gym.make(env_id)\n",
                "    import _pixels; return _pixels.Env()\n",
                "envs.py",
            ),
            Swap(
                "    while True:\n        # Sync",
                "    for _ in range(80):\n        # Sync",
                "train.py",
            ),
            Swap(
                "    while True:\n        episode",
                "    for _ in range(60):\n        episode",
                "test.py",
            ),
            Swap("time.sleep(60)", "time.sleep(0.1)", "test.py"),
        ),
        stubs=("gym", "pixels"),
        judged={
            "FL106": "right: since `zero_grad` sets to None, the worker's own gradients are never cleared",
            "FL624": "right: so the loss goes up",
        },
    ),
    Real(
        "deepctr",
        "shenweichen/DeepCTR-Torch",
        "examples/run_classification_criteo.py",
        ("examples/run_classification_criteo.py", "deepctr_torch"),
        data=("criteo",),
        path=(".",),
        stubs=("tensorflow",),
    ),
    Real(
        "pinn",
        "jayroxis/PINNs",
        _BURGERS.replace(".ipynb", ".py"),
        (_BURGERS, "Utilities/plotting.py"),
        swaps=(
            Swap("N_f = 10000", "N_f = 300"),
            Swap("max_iter=50000", "max_iter=150"),
            Swap("scipy.io.loadmat('data/burgers_shock.mat')", "__import__('_waves').made_up()"),
        ),
        stubs=("pydoe",),
    ),
    Real(
        "pyro-vae",
        "pyro-ppl/pyro",
        "examples/vae/vae.py",
        ("examples/vae",),
        "--num-epochs 15",
        swaps=(
            Swap('startswith("1.9.1")', 'startswith("1.9")'),
            Swap("batch_size=256", "batch_size=128"),
        ),
        data=("cached mnist",),
        stubs=("visdom",),
    ),
    Real(
        "sam",
        "davda54/sam",
        "example/train.py",
        ("example", "sam.py"),
        "--epochs 2 --depth 10 --width_factor 1 --batch_size 32 --threads 2",
        swaps=(
            Swap(
                "import torchvision\n",
                "import torchvision; torchvision.datasets.cifar.check_integrity = lambda *a: True\n",
                "example/data/cifar.py",
            ),
        ),
        data=("cifar ./data", "cifar ./cifar"),
    ),
    Real(
        "run-mlm",
        "huggingface/transformers",
        "examples/pytorch/language-modeling/run_mlm.py",
        ("examples/pytorch/language-modeling",),
        "--config_name bert-base-cased --tokenizer_name bert-base-cased --train_file train.txt --validation_file valid.txt --do_train --do_eval "
        "--output_dir out --max_seq_length 32 --per_device_train_batch_size 8 --max_steps 60 --report_to none --use_cpu --gradient_checkpointing",
        data=("text", "hub"),
    ),
    Real(
        "llms-from-scratch",
        "rasbt/LLMs-from-scratch",
        "ch05/01_main-chapter-code/gpt_train.py",
        (
            "ch05/01_main-chapter-code/gpt_train.py",
            "ch05/01_main-chapter-code/previous_chapters.py",
        ),
        swaps=(
            Swap('"vocab_size": 50257', '"vocab_size": 257'),
            Swap('"context_length": 256', '"context_length": 32'),
            Swap('"emb_dim": 768', '"emb_dim": 48'),
            Swap('"n_heads": 12', '"n_heads": 4'),
            Swap('"n_layers": 12', '"n_layers": 2'),
            Swap('"num_epochs": 10', '"num_epochs": 1'),
        ),
        data=("verdict",),
        stubs=("tiktoken",),
    ),
    Real(
        "dann",
        "fungtion/DANN",
        "train/main.py",
        ("train", "dataset", "models"),
        swaps=(
            Swap("cuda = True", "cuda = False"),
            Swap("cuda = True", "cuda = False", "train/test.py"),
            Swap("n_epoch = 100", "n_epoch = 6"),
            Swap("batch_size = 128", "batch_size = 32"),
            Swap("num_workers=8", "num_workers=0"),
            Swap("num_workers=8", "num_workers=0", "train/test.py"),
            Swap("xrange", "range"),
            Swap("data_source_iter.next()", "next(data_source_iter)"),
            Swap("data_target_iter.next()", "next(data_target_iter)"),
            Swap("data_target_iter.next()", "next(data_target_iter)", "train/test.py"),
            Swap("print 'epoch: %d, [iter", "_ = 'epoch: %d, [iter"),
            Swap("print 'done'", "print('done')"),
            Swap("print 'epoch", "_ = 'epoch", "train/test.py"),
            Swap(
                "str(epoch) + '.pth'\n    )",
                "str(epoch) + '.pth'\n    ), weights_only=False",
                "train/test.py",
            ),
        ),
        data=("mnist ../dataset", "mnist_m"),
        after="import torch.utils.data",
        path=(".", "models"),
    ),
    Real(
        "mae",
        "facebookresearch/mae",
        "main_pretrain.py",
        ("main_pretrain.py", "engine_pretrain.py", _MAE, "util"),
        "--model mae_vit_base_patch16 --data_path images --batch_size 4 --accum_iter 2 --epochs 8 --warmup_epochs 2 --device cpu --num_workers 1 --norm_pix_loss",
        swaps=(
            Swap('assert timm.__version__ == "0.3.2"', "assert timm.__version__"),
            Swap("optim_factory.add_weight_decay", "optim_factory.param_groups_weight_decay"),
            Swap(", qk_scale=None", "", _MAE),
            Swap(
                "embed_dim=768, depth=12, num_heads=12,\n        decoder_embed_dim=512, decoder_depth=8, decoder_num_heads=16",
                "embed_dim=48, depth=2, num_heads=4,\n        decoder_embed_dim=32, decoder_depth=1, decoder_num_heads=4",
                _MAE,
            ),
            Swap("from torch._six import inf", "from math import inf", "util/misc.py"),
            Swap("dtype=np.float)", "dtype=float)", "util/pos_embed.py"),
            Swap("        torch.cuda.synchronize()", "        pass", "engine_pretrain.py"),
        ),
        data=("folders",),
        judged={"FL303": "right: only with several processes is `set_epoch` called"},
    ),
    Real(
        "yolov3",
        "eriklindernoren/PyTorch-YOLOv3",
        "pytorchyolo/train.py",
        ("pytorchyolo",),
        "-m tiny.cfg -d tiny.data -e 10 --n_cpu 1 --evaluation_interval 5 --conf_thres 0.3",
        data=("boxes",),
        path=(".",),
        stubs=("imgaug",),
    ),
    Real(
        "opacus-mnist",
        "pytorch/opacus",
        "examples/mnist.py",
        ("examples/mnist.py",),
        "--device cpu -n 2 -b 16 --data-root ./data",
        data=("mnist ./data",),
    ),
    Real(
        "transformer",
        "jadore801120/attention-is-all-you-need-pytorch",
        "train.py",
        ("train.py", "transformer"),
        "-data_pkl made-up -output_dir out -epoch 4 -b 16 -d_model 32 -d_inner_hid 64 -n_head 2 -d_k 16 -d_v 16 -n_layers 2 -warmup 40 -no_cuda "
        "-label_smoothing -proj_share_weight -scale_emb_or_prj emb",
        swaps=(
            Swap(
                "pickle.load(open(opt.data_pkl, 'rb'))",
                "__import__('torchtext.data').data.made_up()",
            ),
        ),
        stubs=("torchtext",),
    ),
    Real(
        "pygcn",
        "tkipf/pygcn",
        "pygcn/train.py",
        ("pygcn",),
        data=("cora ../data",),
        path=(".",),
        judged={"FL402": "right: both evaluations run without `no_grad`"},
    ),
    Real(
        "pytorch-wgan",
        "Zeleni9/pytorch-wgan",
        "main.py",
        ("main.py", "models", "utils"),
        "--model WGAN-GP --dataset mnist --dataroot data --generator_iters 20",
        swaps=(
            # as it is, it compares a bool with 'True' and never trains
            Swap(
                "args.is_train = True if args.is_train == 'True' else False",
                "pass",
                "utils/config.py",
            ),
            Swap(
                "from utils.fashion_mnist import MNIST, FashionMNIST",
                "from torchvision.datasets import MNIST, FashionMNIST",
                "utils/data_loader.py",
            ),
            *(
                Swap(old, new, "models/wgan_gradient_penalty.py")
                for old, new in (("256", "8"), ("512", "16"), ("1024", "32"))
            ),
        ),
        data=("mnist ./data",),
        after="from utils.config import parse_args",
        stubs=("tensorflow",),
    ),
    Real(
        "llm.c",
        "karpathy/llm.c",
        "train_gpt2.py",
        ("train_gpt2.py",),
        "--model d12 --input_bin tokens_train.bin --input_val_bin tokens_val.bin --val_loss_every 20 --val_max_steps 4 --sample_every 40 --write_tensors 0 "
        "--num_iterations 100 --batch_size 4 --sequence_length 32 --total_batch_size 256 --dtype bfloat16 --overfit_single_batch 0 --learning_rate 1e-3 --device cpu",
        swaps=(
            Swap(
                "vocab_size=50257, n_layer=12, n_head=12, n_embd=768",
                "vocab_size=257, n_layer=2, n_head=4, n_embd=48",
            ),
            Swap(
                'if device_type == "cuda" else nullcontext()', "if device_type else nullcontext()"
            ),
        ),
        data=("shards",),
        stubs=("tiktoken",),
    ),
)
