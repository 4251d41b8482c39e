"""One script of each of 22 kinds, drawn by lot from lists of names, before anybody here had read or run them."""

from __future__ import annotations

from public_scripts.entry import Real, Swap

__all__ = ["KINDS"]

_BYOL = "examples/pytorch/train.py"
_INTACT = "datasets.cifar.check_integrity = lambda *a: True"
_SPEECH = "src/data_utils/datasets.py"
_WRAPPER = "src/model_utils/model_lightning_wrapper.py"
_CUDA = (Swap('"cuda"', '"cpu"'),)
_PIPELINE = "src/pipeline/my_pipeline.py"
_HYDRA = "configs/my_envs/default.yaml"
_EXPERIMENT = "configs/experiment.yaml"
_SSD = "utils/utils_configuration.py"

KINDS = (
    Real(
        "ddpg",
        "PumpkinJimmy/DDPG-pytorch",
        "main.py",
        ("main.py", "DDPG.py", "utils.py"),
        "--env Pendulum-v1 --start_timesteps 300 --eval_freq 400 --max_timesteps 1200 --batch_size 64",
        swaps=(
            Swap("{args.policy}", "DDPG"),  # as it is, it has no such option
            Swap("max_size=int(1e6)", "max_size=int(1e4)", "utils.py"),
        ),
        stubs=("gym_old",),
    ),
    Real(
        "maml",
        "sungyubkim/maml-pytorch",
        "cls-mimgnet/main.py",
        ("cls-mimgnet",),
        "--n_iter 24 --log_interval 12 --batch_size 2 --k_query 5 --n_channel 8 --n_hidden 32 --data_path mini/",
        swaps=(
            Swap("import utils\n", "import torch\n"),  # a file that it lacks
            Swap("utils.set_seed(args.seed)", "torch.manual_seed(args.seed)"),
            Swap("batchsz=10000", "batchsz=48"),
            Swap("batchsz=500", "batchsz=4"),
        ),
        data=("mini imagenet",),
        stubs=("dropblock",),
    ),
    Real(
        "cyclegan",
        "jesa7955/CycleGAN-PyTorch",
        "cyclegan/train.py",
        ("cyclegan",),
        "--image_height 32 --image_width 32 --d_conv_dim 8 --epochs 3 --decay_epoch 2 --n_cpu 2 --sample_every 20 --dataroot_dir data",
        swaps=(
            Swap("opts.image_height == 128", "opts.image_height <= 128"),
            Swap("64", "8", "cyclegan/models.py"),
        ),
        data=("two styles",),
    ),
    Real(
        "ddpm",
        "FMsunyh/ddpm-denoising-diffusion-pytorch",
        "train.py",
        ("train.py", "denoising_diffusion"),
        "--epochs 2",
        swaps=(
            *_CUDA,
            Swap("n_channels=64", "n_channels=32"),
            Swap("n_steps=1000", "n_steps=20"),
            Swap("batch_size=64", "batch_size=8"),
            Swap("image_size=32", "image_size=16"),
            Swap("n_samples=16", "n_samples=2"),
        ),
        data=("mnist as MNISTDataset",),
    ),
    Real(
        "gcn-graphs",
        "sarah-af/GCN-PyTorch",
        "train.py",
        ("train.py", "gcn.py", "gat.py", "data_processor.py"),
        "graphs.jsonl --model gcn --epochs 12 --batch-size 16",
        swaps=(
            Swap("from torch_scatter import scatter_mean", "scatter_mean = None", "gat.py"),
            Swap("p=self.dropout,", "p=self.dropout.p,", "gcn.py"),  # as it is, it ends here
        ),
        data=("graphs",),
    ),
    Real(
        "gpt-as-module",
        "deniskurlov/gpt-from-scratch",
        "src/train.py",
        ("src",),
        swaps=(
            Swap('["git", "rev-parse", "HEAD"]', '["true"]'),
            Swap('["git", "diff", "HEAD"]', '["true"]'),
            Swap("d_model: int = 128", "d_model: int = 32", "src/config.py"),
            Swap("n_layers: int = 6", "n_layers: int = 2", "src/config.py"),
            Swap("total_steps: int = 5000", "total_steps: int = 240", "src/config.py"),
            Swap("B: int = 64", "B: int = 8", "src/config.py"),
            Swap("T: int = 256", "T: int = 32", "src/config.py"),
            Swap("eval_iters: int = 20", "eval_iters: int = 4", "src/config.py"),
            Swap("eval_interval: int = 200", "eval_interval: int = 60", "src/config.py"),
        ),
        data=("letters",),
        stubs=("jaxtyping",),
        module="src.train",
    ),
    Real(
        "ssd",
        "FYH620/SSD-PyTorch",
        "train.py",
        ("train.py", "nets", "utils"),
        "--init_batchsize 2 --unfreeze_batchsize 2 --unfreeze_epoch 1 --end_epoch 2 --num_workers 2 --cuda false",
        swaps=(Swap("ssd_model.loadPretrainedWeights()", "pass"),),
        data=("voc",),
        stubs=("torchsummary",),
        judged={
            "FL402": "right: validation without `no_grad`",
        },
    ),
    Real(
        "byol",
        "rioyokotalab/byol-pytorch",
        _BYOL,
        ("examples/pytorch", "byol_pytorch"),
        "--image_folder images --batch_size 8 --epochs 40 --imaeg_size 32 --result_path out",
        swaps=(
            Swap('dist_setup(backend="nccl")', 'dist_setup(backend="gloo")'),
            Swap('default="8888"', 'default="29517"'),
            Swap("models.resnet50(pretrained=args.resnet_pretrain)", "models.resnet18()"),
            Swap("multiprocessing.cpu_count()", "1"),
            Swap("projection_hidden_size=4096", "projection_hidden_size=64"),
            Swap("range(start_epoch, EPOCHS)", "range(start_epoch, 4)"),
            Swap("torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)", "model"),
            Swap("device_ids=[local_rank]", "device_ids=None"),
            Swap("output_device=local_rank", "output_device=None"),
            Swap("torch.cuda.memory_allocated(device)", "0"),
            Swap("(optimizer, verbose=verbose)", "(optimizer)", "examples/pytorch/lr_schedule.py"),
        ),
        data=("plain images",),
        path=(".",),
        stubs=("pl_bolts",),
        judged={
            "FL303": "right: nobody calls `set_epoch`",
        },
    ),
    Real(
        "vqvae",
        "GwangsHong/VQVAE-pytorch",
        "train.py",
        ("train.py", "util.py", "dataset.py", "vctk.py", "models.py", "wavenet_vocoder", "configs"),
        "--config configs/image_cifar10.yaml",
        swaps=(
            Swap("yaml.load(stream)", "yaml.safe_load(stream)", "util.py"),
            Swap(" * len(gpu_ids)", ""),
            Swap("train_dataset.train_data", "train_dataset.data"),
            Swap(
                "import torchvision.datasets as datasets\n",
                f"import torchvision.datasets as datasets; {_INTACT}\n",
            ),
            Swap("batch_size: 512", "batch_size: 20", "configs/image_cifar10.yaml"),
            Swap("num_epochs: 100", "num_epochs: 3", "configs/image_cifar10.yaml"),
            Swap("num_workers: 4", "num_workers: 1", "configs/image_cifar10.yaml"),
            Swap("dim: 128", "dim: 32", "configs/image_cifar10.yaml"),
            Swap("k: 512", "k: 64", "configs/image_cifar10.yaml"),
            Swap(
                "make_grid(data_recon_val.cpu().data) + 0.5",
                "make_grid(data_recon_val.cpu().data).clamp(-.5, .5) + 0.5",
            ),
            Swap(
                "make_grid(data_val.cpu().data) + 0.5",
                "make_grid(data_val.cpu().data).clamp(-.5, .5) + 0.5",
            ),
        ),
        data=("cifar ./cifar10",),
        stubs=("librosa", "torchtext"),
        judged={
            "FL811": "right: `[block] * n`",
            "FL122": "right: forward() replaces two parameters that the optimizer holds",
            "FL402": "right: validation without `no_grad`",
        },
    ),
    Real(
        "vlae",
        "henrhoi/vae-pytorch",
        "vlae.py",
        ("vlae.py", "vae.py", "utils.py"),
        swaps=(
            Swap(".cuda()", ""),
            Swap(".cuda()", "", "vae.py"),
            Swap("K=50", "K=2"),
            Swap("K = 50", "K = 2"),
            Swap("batch_size = 128", "batch_size = 20"),
            Swap("n_epochs = 30", "n_epochs = 4"),
            Swap("from utils import *", "from utils import *; import torch"),
            Swap(
                "    show_results_images_vae(2, train_vlae)\n",
                "    show_results_images_vae(2, train_vlae)\n\ntrain_and_show_results_cifar()\n",
            ),
        ),
        data=("pickled images",),
        after="import torch.distributions as dist",
    ),
    Real(
        "keywords",
        "huonglarne/keyword-spotting-with-distillation",
        "train.py",
        ("train.py", "src"),
        swaps=(
            Swap('WandbLogger(project="ViT_experiments")', "False"),
            Swap("max_epochs=50", "max_epochs=3, accelerator='cpu'"),
            Swap("data_module.setup()", "data_module.setup(None)"),
            Swap(
                "import SPEECHCOMMANDS",
                "import SPEECHCOMMANDS; from _waves_of_words import SPEECHCOMMANDS",
                _SPEECH,
            ),
            Swap("Accuracy()", "Accuracy(task='multiclass', num_classes=35)", _WRAPPER),
            Swap("BATCH_SIZE = 256", "BATCH_SIZE = 16", "src/constants.py"),
            Swap("NUM_WORKERS = 4", "NUM_WORKERS = 1", "src/constants.py"),
        ),
        stubs=("words",),
    ),
    Real(
        "td3-notebook",
        "henry32144/TD3-Pytorch",
        "BipedalWalkerV2.py",
        ("BipedalWalkerV2.ipynb",),
        swaps=(
            Swap("BipedalWalker-v2", "Pendulum-v1"),
            Swap("n_episodes=1000", "n_episodes=3"),
            Swap(
                "agent.actor_local.load_state_dict(",
                "raise SystemExit\nagent.actor_local.load_state_dict(",
            ),
        ),
        stubs=("gym_old",),
    ),
    Real(
        "cats-and-dogs",
        "KillerStrike17/lightning-template-hydra",
        "src/train.py",
        ("src",),
        "--classifier_type 1",
        swaps=(
            Swap("max_epochs=1,", "max_epochs=2,"),
            Swap("batch_size=32", "batch_size=4"),
            Swap("    trainer.test(model, data_module)\n", "\n"),  # as it is, it ends here
            Swap("pretrained=True", "pretrained=False", "src/models/catdog_classifier.py"),
            Swap("(224, 224)", "(32, 32)", "src/datamodules/catdog_datamodule.py"),
            Swap(
                "        download_and_extract_archive(",
                "        dict(",
                "src/datamodules/catdog_datamodule.py",
            ),
            Swap("import gdown\n", "gdown = None\n", "src/datamodules/dogbreed_datamodule.py"),
            Swap("import DogBreedImageDataModule", "import DogBreedImageDataModule; import torch"),
        ),
        data=("cats and dogs",),
        after="import torch",
        path=("src",),
    ),
    Real(
        "pointnet",
        "BloomBabe/PointNet-Pytorch",
        "train_cls.py",
        ("train_cls.py", "model.py", "dataset_utils"),
        "--dataset_root off --epoch 3 --batch_size 6",
        swaps=(
            Swap("    os.makedirs(EXP_DIR)", "    os.makedirs(EXP_DIR, exist_ok=True)"),
            Swap("f'/saved_epoch", "f'saved_epoch"),
        ),
        data=("meshes",),
    ),
    Real(
        "wgan-gp-64",
        "ChenKaiXuSan/WGAN-GP-PyTorch",
        "main.py",
        ("main.py", "trainer_dcgan.py", "models", "utils", "dataset"),
        "--epochs 3 --batch_size 16 --dataroot ./data --g_conv_dim 4 --d_conv_dim 4 --log_step 1",
        swaps=(
            Swap(".cuda()", "", "trainer_dcgan.py"),
            Swap(".cuda().expand_as", ".expand_as", "utils/utils.py"),
            Swap("torch.ones(out.size()).cuda()", "torch.ones(out.size())", "utils/utils.py"),
            Swap("from utils.utils import *", "from utils.utils import *; import torch"),
        ),
        data=("small mnist ./data",),
        after="from dataset.dataset import getdDataset",
    ),
    Real(
        "protonets",
        "12ds95/prototypical-networks",
        "scripts/train/few_shot/run_train.py",
        ("scripts/train", "protonets"),
        "--data.way 4 --data.shot 2 --data.query 2 --data.test_way 3 --data.test_shot 2 --data.test_query 2 --data.train_episodes 20 --data.test_episodes 5 "
        "--model.hid_dim 8 --model.z_dim 8 --train.epochs 5 --train.decay_every 2",
        swaps=(
            Swap("loss_val.data[0]", "loss_val.item()", "protonets/models/few_shot.py"),
            Swap("acc_val.data[0]", "acc_val.item()", "protonets/models/few_shot.py"),
            Swap(
                "np.array(d[key], np.float32, copy=False)",
                "np.array(d[key], np.float32)",
                "protonets/data/omniglot.py",
            ),
            Swap(
                ".view(1, d[key].size[0], d[key].size[1])", "[None]", "protonets/data/omniglot.py"
            ),
            Swap(
                "import protonets.data\n",
                "import protonets.data.omniglot\n",
                "protonets/utils/data.py",
            ),
            Swap("import argparse\n", "import argparse; import torch\n"),
        ),
        data=("omniglot splits",),
        after="import argparse",
        path=(".",),
        stubs=("visdom", "torchnet"),
        judged={
            "FL402": "right: validation without `no_grad`",
            "FL109": "right: the schedule steps at the start of each epoch",
        },
    ),
    Real(
        "fashion-notebook",
        "abhishek-sankar/PyTorch-Notebooks",
        "cifar10.py",
        ("cifar10.ipynb",),
        swaps=(
            Swap("epochs = 10\n", "epochs = 6\n"),
            Swap("testing_data[100]", "testing_data[99]"),
        ),
        data=("fashion",),
    ),
    Real(
        "neural-style",
        "avoroshilov/neural-style-pytorch",
        "neural_style.py",
        ("neural_style.py", "stylize.py", "vgg.py"),
        swaps=(
            Swap("VGG19_model.load_state_dict(torch.load(weights_path))", "pass", "vgg.py"),
            Swap("NUM_OPTIM_STEPS = 4000", "NUM_OPTIM_STEPS = 40", "stylize.py"),
        ),
        data=("cat and stars",),
    ),
    Real(
        "ppo-processes",
        "ASzot/ppo-pytorch",
        "train.py",
        ("train.py", "memory.py", "model.py", "multiprocessing_env.py"),
        swaps=(
            Swap("CUDA = True", "CUDA = False"),
            Swap("'Reacher-v1'", "'Pendulum-v1'"),
            Swap("N_FRAMES = 10e6", "N_FRAMES = 600"),
            Swap("N_ENVS = 16", "N_ENVS = 4"),
            Swap("N_MINI_BATCH = 32", "N_MINI_BATCH = 4"),
        ),
        stubs=("gym_old",),
    ),
    Real(
        "vqvae-accelerate",
        "xyfJASON/vqvae-pytorch",
        "scripts/train_vqvae.py",
        ("scripts", "configs", "models", "utils"),
        "-c ../configs/vqvae-celeba.yaml -e out --data.name cifar10 --data.root ./data --data.img_size 32 --dataloader.num_workers 1 --vqmodel.z_channels 16 "
        "--vqmodel.codebook_num 32 --vqmodel.codebook_dim 8 --vqmodel.encoder.params.hidden_dim 16 --vqmodel.decoder.params.hidden_dim 16 "
        "--vqmodel.quantizer.params.codebook_num 32 --vqmodel.quantizer.params.codebook_dim 8 --train.n_steps 150 --train.batch_size 16 "
        "--train.print_freq 50 --train.sample_freq 60 --train.save_freq 70",
        swaps=(
            Swap(
                "import torchvision.datasets as dset\n",
                "import torchvision.datasets as dset; dset.cifar.check_integrity = lambda *a: True\n",
                "utils/data.py",
            ),
        ),
        data=("cifar ./data",),
        path=(".",),
    ),
    Real(
        "bert-turns",
        "horiso0921/BERT-Finetune",
        "train.py",
        ("train.py", "dataload.py", "score.py", "model"),
        "--data turns --arc bertlabel --lr 1e-3 --bs 8 --label_dim 3 --debug --base_model bert-base-cased",
        swaps=(
            Swap(
                'if base_model == "cl-tohoku/bert-large-japanese":\n        feature_dim = 1024',
                "feature_dim = 32",
            ),
            Swap(
                "wandb.init(project=project_n, name=name)",
                "wandb.init(project=project_n, name=name, mode='disabled')",
            ),
            Swap("data=list(conf_m)", "data=conf_m.tolist()"),
        ),
        data=("hub", "turns"),
        judged={
            "FL122": "true and harmless: the pooler of BERT is not used",
        },
    ),
    Real(
        "fabric-hydra",
        "SindreYang/pytorch-hydra-template",
        "main.py",
        ("main.py", "src", "configs"),
        swaps=(
            Swap(
                "from lightning_fabric import fabric",
                "import lightning.fabric as fabric; import torch",
            ),
            Swap("from lightning_fabric.loggers", "from lightning.fabric.loggers"),
            Swap("from lightning_fabric.loggers", "from lightning.fabric.loggers", _PIPELINE),
            Swap("import Accuracy, Dice", "import Accuracy", _PIPELINE),
            Swap("  - override hydra/hydra_logging: colorlog", "  #", _EXPERIMENT),
            Swap("  - override hydra/job_logging: colorlog", "  #", _EXPERIMENT),
            Swap("epochs: 200", "epochs: 4", _HYDRA),
            Swap(
                "prefetch_factor: int =2",
                "prefetch_factor=None",
                "src/datamodules/my_datamodule.py",
            ),
            Swap("hidden_size: 512", "hidden_size: 32", _HYDRA),
            Swap("[0.95, 0.05]", "[0.8, 0.2]", _HYDRA),
            Swap("sample_size: 1025", "sample_size: 128", _HYDRA),
            Swap("[1,3,1024]", "[2,3,128]", _HYDRA),
        ),
        data=("segmented points",),
        after="import lightning.fabric as fabric",
        stubs=("torchsummary",),
    ),
)
