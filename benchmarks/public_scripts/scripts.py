"""The scripts, and what a person thinks of each finding in them."""

from __future__ import annotations

from public_scripts.drawn import DRAWN
from public_scripts.entry import Real, Swap
from public_scripts.frameworks import FRAMEWORKS
from public_scripts.kinds import KINDS
from public_scripts.small import SMALL

__all__ = ["SCRIPTS"]

_EXAMPLES = "pytorch/examples"
_TUTORIAL = "yunjey/pytorch-tutorial"
_GAN = "eriklindernoren/PyTorch-GAN"
_RL = "vwxyzjn/cleanrl"
# torchvision compares checksums of CIFAR's files; ours are made up
_CIFAR = Swap(
    "import torchvision\n",
    "import torchvision; torchvision.datasets.cifar.check_integrity = lambda *a: True\n",
)

_CLASSIC = (
    Real(
        "mnist",
        _EXAMPLES,
        "mnist/main.py",
        ("mnist",),
        "--epochs 2 --no-accel --batch-size 16 --test-batch-size 50",
        data=("mnist ../data",),
    ),
    Real(
        "mnist-rnn",
        _EXAMPLES,
        "mnist_rnn/main.py",
        ("mnist_rnn",),
        "--epochs 1 --batch-size 16",
        data=("mnist ../data",),
    ),
    Real(
        "vae",
        _EXAMPLES,
        "vae/main.py",
        ("vae",),
        "--epochs 2 --no-accel --batch-size 16",
        data=("mnist ../data", "results"),
    ),
    Real(
        "regression",
        _EXAMPLES,
        "regression/main.py",
        ("regression",),
        swaps=(Swap("in count(1)", "in range(1, 400)"),),
    ),
    Real(
        "ddp-tutorial",
        _EXAMPLES,
        "distributed/ddp-tutorial-series/single_gpu.py",
        ("distributed/ddp-tutorial-series",),
        "3 2",
        swaps=(Swap("device = 0  # shorthand for cuda:0", 'device = "cpu"'),),
        judged={"FL132": "right: cross-entropy over one logit is always 0"},
    ),
    Real(
        "gcn",
        _EXAMPLES,
        "gcn/main.py",
        ("gcn",),
        "--no-accel",
        swaps=(
            Swap("with requests.get(cora_url, stream=True) as tgz_file:", "if False:"),
            Swap("idx[:1000], idx[1000:1500], idx[1500:]", "idx[:500], idx[500:1000], idx[1000:]"),
        ),
        data=("cora",),
    ),
    Real(
        "reinforce",
        _EXAMPLES,
        "reinforcement_learning/reinforce.py",
        ("reinforcement_learning",),
        swaps=(Swap("count(1)", "range(1, 80)"),),
    ),
    Real(
        "actor-critic",
        _EXAMPLES,
        "reinforcement_learning/actor_critic.py",
        ("reinforcement_learning",),
        swaps=(Swap("count(1)", "range(1, 80)"),),
    ),
    Real(
        "sines",
        _EXAMPLES,
        "time_sequence_prediction/train.py",
        ("time_sequence_prediction",),
        "--steps 6",
        swaps=(
            Swap("future = 1000", "future = 100"),
            Swap("torch.load('traindata.pt')", "torch.load('traindata.pt', weights_only=False)"),
        ),
        data=("sines",),
    ),
    Real(
        "word-lm",
        _EXAMPLES,
        "word_language_model/main.py",
        ("word_language_model",),
        "--epochs 2 --emsize 32 --nhid 32 --batch_size 10 --lr 5",
        data=("wikitext",),
    ),
    Real(
        "super-resolution",
        _EXAMPLES,
        "super_resolution/main.py",
        ("super_resolution",),
        "--upscale_factor 3 --batchSize 4 --nEpochs 4 --threads 1 --testBatchSize 4 --lr 0.001",
        swaps=(
            Swap(
                "crop_size = calculate_valid_crop_size(256",
                "crop_size = calculate_valid_crop_size(48",
                "super_resolution/data.py",
            ),
        ),
        data=("bsd300",),
    ),
    Real(
        "dcgan",
        _EXAMPLES,
        "dcgan/main.py",
        ("dcgan",),
        "--dataset fake --niter 2 --ngf 4 --ndf 4 --batchSize 32 --workers 0 --manualSeed 1",
    ),
    Real(
        "imagenet",
        _EXAMPLES,
        "imagenet/main.py",
        ("imagenet",),
        "--dummy --no-accel --epochs 1 -b 16 -j 0 --lr 0.01",
        swaps=(
            Swap("FakeData(1281167, (3, 224, 224), 1000", "FakeData(800, (3, 32, 32), 1000"),
            Swap("FakeData(50000, (3, 224, 224), 1000", "FakeData(64, (3, 32, 32), 1000"),
        ),
    ),
    Real(
        "forward-forward",
        _EXAMPLES,
        "mnist_forward_forward/main.py",
        ("mnist_forward_forward",),
        "--epochs 60 --train_size 300 --test_size 100 --no_accel",
        data=("mnist ./data",),
    ),
    Real(
        "feedforward",
        _TUTORIAL,
        "tutorials/01-basics/feedforward_neural_network/main.py",
        ("tutorials/01-basics/feedforward_neural_network",),
        data=("mnist ../../data",),
    ),
    Real(
        "logistic",
        _TUTORIAL,
        "tutorials/01-basics/logistic_regression/main.py",
        ("tutorials/01-basics/logistic_regression",),
        data=("mnist ../../data",),
    ),
    Real(
        "linear",
        _TUTORIAL,
        "tutorials/01-basics/linear_regression/main.py",
        ("tutorials/01-basics/linear_regression",),
    ),
    Real(
        "bi-rnn",
        _TUTORIAL,
        "tutorials/02-intermediate/bidirectional_recurrent_neural_network/main.py",
        ("tutorials/02-intermediate/bidirectional_recurrent_neural_network",),
        data=("mnist ../../data",),
    ),
    Real(
        "lstm-lm",
        _TUTORIAL,
        "tutorials/02-intermediate/language_model/main.py",
        ("tutorials/02-intermediate/language_model",),
        swaps=(Swap("hidden_size = 1024", "hidden_size = 64"),),
        data=("penn",),
    ),
    Real(
        "tutorial-gan",
        _TUTORIAL,
        "tutorials/03-advanced/generative_adversarial_network/main.py",
        ("tutorials/03-advanced/generative_adversarial_network",),
        swaps=(Swap("num_epochs = 200", "num_epochs = 3"),),
        data=("mnist ../../data",),
    ),
    Real(
        "gan",
        _GAN,
        "implementations/gan/gan.py",
        ("implementations/gan",),
        "--n_epochs 1 --batch_size 16",
        data=("mnist ../../data/mnist",),
    ),
    Real(
        "wgan",
        _GAN,
        "implementations/wgan/wgan.py",
        ("implementations/wgan",),
        "--n_epochs 1 --batch_size 16",
        data=("mnist ../../data/mnist",),
    ),
    Real(
        "wgan-gp",
        _GAN,
        "implementations/wgan_gp/wgan_gp.py",
        ("implementations/wgan_gp",),
        "--n_epochs 1 --batch_size 16",
        data=("mnist ../../data/mnist",),
    ),
    Real(
        "acgan",
        _GAN,
        "implementations/acgan/acgan.py",
        ("implementations/acgan",),
        "--n_epochs 1 --batch_size 16",
        data=("mnist ../../data/mnist",),
    ),
    Real(
        "makemore",
        "karpathy/makemore",
        "makemore.py",
        ("makemore.py",),
        "--max-steps 150 -n 0 --n-layer 2 --n-embd 32",
        data=("names",),
    ),
    Real(
        "ng-gpt",
        "karpathy/ng-video-lecture",
        "gpt.py",
        ("gpt.py",),
        swaps=(
            Swap("batch_size = 64", "batch_size = 8"),
            Swap("block_size = 256", "block_size = 32"),
            Swap("max_iters = 5000", "max_iters = 120"),
            Swap("eval_iters = 200", "eval_iters = 5"),
            Swap("n_embd = 384", "n_embd = 48"),
            Swap("n_layer = 6", "n_layer = 2"),
        ),
        data=("text",),
    ),
    Real(
        "adder",
        "karpathy/minGPT",
        "projects/adder/adder.py",
        ("projects/adder", "mingpt"),
        "--trainer.max_iters=120 --trainer.num_workers=0 --model.model_type=gpt-nano",
        path=(".",),
    ),
    Real(
        "nanogpt",
        "karpathy/nanoGPT",
        "train.py",
        ("train.py", "model.py", "configurator.py", "config"),
        "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=4 --eval_interval=100 --log_interval=20 --block_size=32 "
        "--batch_size=8 --n_layer=2 --n_head=2 --n_embd=32 --max_iters=120 --lr_decay_iters=120 --dropout=0.0 --gradient_accumulation_steps=2",
        data=("shakespeare",),
    ),
    Real(
        "lecun1989",
        "karpathy/lecun1989-repro",
        "repro.py",
        ("repro.py",),
        swaps=(
            Swap("range(23)", "range(2)"),
            Swap(
                "from tensorboardX import SummaryWriter",
                "from torch.utils.tensorboard import SummaryWriter",
            ),
        ),
        data=("digits 1989",),
        judged={"FL402": "right: `eval_split` evaluates without `no_grad`"},
    ),
    Real(
        "made",
        "karpathy/pytorch-made",
        "run.py",
        ("run.py", "made.py"),
        "-d binarized_mnist.npz -q 100",
        swaps=(
            Swap("xtr = torch.from_numpy(xtr).cuda()", "xtr = torch.from_numpy(xtr)"),
            Swap("xte = torch.from_numpy(xte).cuda()", "xte = torch.from_numpy(xte)"),
            Swap("model.cuda()", "model"),
            Swap("range(100)", "range(4)"),
        ),
        data=("binarized",),
    ),
    Real(
        "cifar",
        "kuangliu/pytorch-cifar",
        "main.py",
        ("main.py", "models", "utils.py"),
        swaps=(
            _CIFAR,
            Swap("net = SimpleDLA()", "net = LeNet()"),
            Swap("range(start_epoch, start_epoch+200)", "range(start_epoch, start_epoch+3)"),
            Swap(
                "_, term_width = os.popen('stty size', 'r').read().split()",
                "term_width = '80'",
                "utils.py",
            ),
        ),
        data=("cifar ./data",),
    ),
    Real(
        "dqn",
        _RL,
        "cleanrl/dqn.py",
        ("cleanrl/dqn.py", "cleanrl_utils"),
        "--total-timesteps 2000 --learning-starts 1000 --no-cuda",
        path=(".",),
    ),
    Real(
        "ppo",
        _RL,
        "cleanrl/ppo.py",
        ("cleanrl/ppo.py", "cleanrl_utils"),
        "--total-timesteps 2600 --no-cuda",
        path=(".",),
    ),
    Real(
        "c51",
        _RL,
        "cleanrl/c51.py",
        ("cleanrl/c51.py", "cleanrl_utils"),
        "--total-timesteps 2000 --learning-starts 1000 --no-cuda",
        path=(".",),
    ),
    Real(
        "td3",
        _RL,
        "cleanrl/td3_continuous_action.py",
        ("cleanrl/td3_continuous_action.py", "cleanrl_utils"),
        "--env-id Pendulum-v1 --total-timesteps 1150 --learning-starts 1000 --no-cuda",
        swaps=(  # gymnasium hands it out differently since
            Swap('infos["final_observation"][idx]', 'infos.get("final_obs", next_obs)[idx]'),
        ),
        path=(".",),
    ),
)

SCRIPTS = (*_CLASSIC, *FRAMEWORKS, *DRAWN, *SMALL, *KINDS)
