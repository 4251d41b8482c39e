"""Scripts of small repositories, drawn by lot from lists of names, before anybody here had run them."""

from __future__ import annotations

from public_scripts.entry import Real, Swap

__all__ = ["SMALL"]

_GRAPH = "FakeDataset(1, avg_num_nodes=300, num_classes=5, task='node', transform=T.RandomNodeSplit(num_val=0.2, num_test=0.2))"
_OTHER_GRAPHS = (
    ("citeseer_loader", "CiteSeer"),
    ("pubmed_loader", "PubMed"),
    ("coauthor_cs_loader", "CoauthorCS"),
)
_INTACT = "datasets.cifar.check_integrity = lambda *a: True"
_DCGAN = "configs/default.yaml"
_VIT = "config/default.yaml"

SMALL = (
    Real(
        "cartpole-dqn",
        "Deniz95140/cartpole-dqn-pytorch",
        "train_dqn.py",
        ("train_dqn.py",),
        swaps=(
            Swap("TOTAL_STEPS = 50_000", "TOTAL_STEPS = 1_300"),
            Swap("import torch  # framework deep learning\n", "import torch\n"),
        ),
    ),
    Real(
        "pendulum-ppo",
        "railc2134-star/pendulum-ppo-pytorch",
        "mujuco.py",
        ("mujuco.py",),
        swaps=(
            Swap("render_mode='human'", "render_mode=None"),
            Swap("range (10000)", "range (24)"),
            Swap("env.reset()", "env.reset(seed=episode)"),
        ),
    ),
    Real(
        "basic-ppo",
        "NameOnTree/Basic-PPO-Pytorch",
        "PPO.py",
        ("PPO.py",),
        swaps=(
            Swap('gym.make("LunarLander-v2", render_mode="human")', 'gym.make("CartPole-v1")'),
            Swap("env.render()", "pass"),
            Swap("n_step = 1000000", "n_step = 2200"),
        ),
    ),
    Real(
        "graph-of-nodes",
        "baolam/graph-attention-classification",
        "test_graph.py",
        ("test_graph.py", "GraphAttention"),
        swaps=(Swap("epochs = 500", "epochs = 150"),),
    ),
    Real(
        "gat-lightning",
        "semink/graph-attention-network-pytorch-lightning",
        "run.py",
        ("run.py", "utils.py", "model"),
        swaps=(
            Swap("import Planetoid", "import FakeDataset"),
            Swap('Planetoid(root="./data", name="Cora", transform=transform)', _GRAPH),
            Swap("range(100)", "range(1)"),
            Swap("max_epochs=10000", "max_epochs=120"),
        ),
    ),
    Real(
        "gat-by-hand",
        "kushalbose92/graph-attention-network",
        "main.py",
        ("main.py", "train.py", "test.py", "utils.py", "model.py", "layers.py", "cora_loader.py"),
        "--use_saved_model False --nheads 4 --alpha 0.2 --lr 0.01",
        swaps=(
            *(
                Swap(f"from {module} import {name}\n", "\n", path)
                for path in ("main.py", "train.py", "test.py", "utils.py")
                for module, name in _OTHER_GRAPHS
            ),
            Swap(
                "import Planetoid",
                "import FakeDataset; import torch_geometric.transforms as T",
                "cora_loader.py",
            ),
            Swap(
                "Planetoid(root='data/Planetoid', name='Cora', transform = NormalizeFeatures())",
                _GRAPH,
                "cora_loader.py",
            ),
            Swap("contains_isolated_nodes", "has_isolated_nodes", "cora_loader.py"),
            Swap("contains_self_loops", "has_self_loops", "cora_loader.py"),
        ),
        data=("saved models",),
        judged={
            "FL401": "right: `losses.append(loss)`",
            "FL402": "right: validation without `no_grad`",
        },
    ),
    Real(
        "dcgan-smoothed",
        "sudsho/dcgan-image-generation",
        "src/train.py",
        ("src", "configs"),
        "--config ../configs/default.yaml",
        swaps=(
            Swap("batch_size: 128", "batch_size: 16", _DCGAN),
            Swap("num_workers: 4", "num_workers: 1", _DCGAN),
            Swap("ngf: 64", "ngf: 8", _DCGAN),
            Swap("ndf: 64", "ndf: 8", _DCGAN),
            Swap("epochs: 25", "epochs: 4", _DCGAN),
            Swap("enabled: true", "enabled: false", _DCGAN),
            Swap("import mlflow\n", "import no_mlflow\n"),
        ),
        data=("faces in a folder",),
        path=(".",),
    ),
    Real(
        "dcgan-faces",
        "zhihao-lin/DCGAN",
        "main.py",
        ("main.py", "model_manager.py", "dataset.py", "util.py", "models"),
        "train g_tutorial d_tutorial -batch_size 8 -epoch_num 4 -check_batch_num 4",
        swaps=(
            Swap("'../face_data'", "'face_data'"),
            Swap("'../weights/'", "'weights/'", "model_manager.py"),
        ),
        data=("faces",),
    ),
    Real(
        "vit-textures",
        "explainingai-code/VIT-Pytorch",
        "tools/train.py",
        ("tools", "config", "dataset", "model"),
        "--config ../config/default.yaml",
        swaps=(
            Swap(", verbose=True", ""),
            Swap("num_workers=4", "num_workers=1"),
            Swap("224", "32", _VIT),
            Swap("16", "8", _VIT),
            Swap("batch_size: 64", "batch_size: 16", _VIT),
            Swap("epochs: 100", "epochs: 6", _VIT),
            Swap("n_layers: 6", "n_layers: 2", _VIT),
        ),
        data=("textures",),
        path=(".",),
    ),
    Real(
        "vit-cifar",
        "satojkovic/vit-pytorch",
        "train.py",
        ("train.py", "vit_pytorch"),
        swaps=(
            Swap("num_layers = 12", "num_layers = 2"),
            Swap("embed_dim = 192", "embed_dim = 48"),
            Swap("mlp_dim = 768", "mlp_dim = 96"),
            Swap("range(10)", "range(4)"),
            Swap("import torchvision\n", f"import torchvision; torchvision.{_INTACT}\n"),
        ),
        data=("cifar ./data",),
    ),
    Real(
        "simclr",
        "sthalles/SimCLR",
        "run.py",
        ("run.py", "simclr.py", "utils.py", "data_aug", "models", "exceptions"),
        "-dataset-name cifar10 -data ./data -b 20 -j 1 --epochs 1 --log-every-n-steps 10",
        swaps=(
            Swap(
                "from torchvision import transforms, datasets\n",
                f"from torchvision import transforms, datasets; {_INTACT}\n",
                "data_aug/contrastive_learning_dataset.py",
            ),
        ),
        data=("cifar ./data",),
    ),
    Real(
        "spline-flows",
        "tonyduan/normalizing-flows",
        "examples/ex_2d.py",
        ("examples", "src"),
        "--iterations 150 --n 128 --actnorm --convolve",
        swaps=(Swap("./examples/ex_2d.png", "ex_2d.png"),),
        path=(".",),
    ),
    Real(
        "planar-flows",
        "ex4sperans/variational-inference-with-normalizing-flows",
        "run_experiment.py",
        (
            "run_experiment.py",
            "visualization.py",
            "utils.py",
            "flow.py",
            "losses.py",
            "densities.py",
        ),
        swaps=(Swap('"iterations": 10000', '"iterations": 200'),),
        stubs=("mag",),
        judged={"FL109": "right: the scheduler steps first"},
    ),
    Real(
        "lstm-digits",
        "yakhyo/pytorch-tutorials",
        "tutorials/03-intermediate/04-lstm-network/main.py",
        ("tutorials/03-intermediate/04-lstm-network",),
        data=("mnist ./data",),
    ),
    Real(
        "vae-digits",
        "yakhyo/pytorch-tutorials",
        "tutorials/03-intermediate/05-var-auto-encode/main.py",
        ("tutorials/03-intermediate/05-var-auto-encode",),
        "--batch-size 100 --epochs 12",
        # as it is, it needs two GPUs: only DataParallel has a `module`
        swaps=(Swap("model.module.decode", "model.decode"),),
        data=("mnist ../data", "results"),
    ),
    Real(
        "dropout",
        "yangyutu/PyTorch-Tutorial",
        "tutorial-contents/503_dropout.py",
        ("tutorial-contents/503_dropout.py",),
        swaps=(Swap("plt.pause(0.1)", "pass"),),
        judged={"FL402": "right: the test pass records a graph"},
    ),
    Real(
        "lstm-sine",
        "yangyutu/PyTorch-Tutorial",
        "tutorial-contents/403_RNN_regressor_LSTM.py",
        ("tutorial-contents/403_RNN_regressor_LSTM.py",),
        swaps=(Swap("plt.pause(0.05)", "pass"),),
    ),
    Real(
        "accelerate-glue",
        "borisdayma/accelerate-example",
        "main.py",
        ("main.py",),
        swaps=(
            Swap(
                "import load_dataset, load_metric",
                "import load_dataset; from evaluate import load as load_metric; AdamW = torch.optim.AdamW",
            ),
            Swap("    AdamW,\n", "\n"),
            Swap(", correct_bias=correct_bias", ""),
            Swap("fp16=args.fp16, cpu=args.cpu", "cpu=True"),
            Swap('"glue", "mrpc"', '"nyu-mll/glue", "mrpc"'),
            Swap(
                "tokenized_datasets.rename_column_(",
                "tokenized_datasets = tokenized_datasets.rename_column(",
            ),
            Swap("DistributedType.TPU", "DistributedType.XLA"),
        ),
        data=("hub",),
    ),
    Real(
        "distilbert",
        "suman-somu/DistilBERT-finetune",
        "finetune.py",
        ("finetune.py",),
        swaps=(
            Swap("evaluation_strategy", "eval_strategy"),
            Swap("distilbert-base-uncased", "bert-base-cased"),
            Swap("range(1000)", "range(480)"),
            Swap("range(100)", "range(32)"),
            Swap('    logging_dir="./logs",\n', "\n"),
            Swap(
                '"./results",\n    learning_rate',
                '"./results", report_to="none", use_cpu=True,\n    learning_rate',
            ),
        ),
        data=("hub", "reviews"),
    ),
    Real(
        "bert-for-mac",
        "tsato081/bert-finetuning-for-mac",
        "train_base.py",
        ("train_base.py",),
        swaps=(
            Swap(
                "AutoModelForSequenceClassification, AdamW,", "AutoModelForSequenceClassification,"
            ),
            Swap("optimizer = AdamW(", "optimizer = torch.optim.AdamW("),
            Swap("tohoku-nlp/bert-base-japanese-v3", "bert-base-cased"),
            Swap("MAX_LEN = 512", "MAX_LEN = 48"),
            Swap("Hawks_正解データマスター - ver 5.0 csv出力用.csv", "test.csv"),
        ),
        data=("hub", "articles"),
    ),
    Real(
        "word2vec",
        "PengFoo/word2vec-pytorch",
        "word2vec/train.py",
        ("word2vec",),
        swaps=(
            Swap("sample_tbl_size = 1e8", "sample_tbl_size = 1e5", "word2vec/data_handler.py"),
            Swap("'../data/zhihu.txt'", "'zhihu.txt'"),
        ),
        data=("zhihu",),
        path=(".",),
    ),
    Real(
        "siamese",
        "fangpin/siamese-pytorch",
        "train.py",
        ("train.py", "model.py", "mydataset.py"),
        "--cuda=False --train_path=omniglot --test_path=omniglot --way=4 --times=3 --workers=1 --batch_size=8 --max_iter=60 --test_every=30 --gpu_ids=0 --model_path=.",
        swaps=(
            Swap("64", "8", "model.py"),
            Swap("128", "8", "model.py"),
            Swap("256", "8", "model.py"),
            Swap("9216, 4096", "288, 64", "model.py"),
            Swap("4096, 1", "64, 1", "model.py"),
            Swap('DEFINE_string("times"', 'DEFINE_integer("times"'),
        ),
        data=("omniglot",),
        stubs=("gflags",),
    ),
    Real(
        "ddpm-cifar",
        "egeyavuzcan/ddpm-flow-matching-from-scratch",
        "scripts/train.py",
        ("scripts", "src", "configs"),
        "--epochs 1 --batch_size 20",
        swaps=(
            Swap("num_workers: 4", "num_workers: 1", "configs/base.yaml"),
            Swap(
                "from torchvision import transforms\n",
                f"from torchvision import transforms, datasets; {_INTACT}\n",
                "src/dataset/cifar10.py",
            ),
        ),
        data=("cifar ./data",),
    ),
    Real(
        "ddpm-digit",
        "faisalqureshi/ddpm-mnist",
        "mnist_single_digit/train.py",
        ("mnist_single_digit", "common"),
        "--cache-dir cache --outdir out --batch-size 16 --num-workers 0 --epochs 6 --T 50 --samples-per-epoch 4 --device cpu",
        swaps=(
            Swap("base_ch=64, time_dim=256", "base_ch=8, time_dim=32"),
            Swap(
                'ds.load_dataset("ylecun/mnist", split=split, cache_dir=cache_dir)',
                "__import__('_digits').made_up()",
                "common/data.py",
            ),
        ),
        stubs=("digits",),
    ),
    Real(
        "diffusion-lightning",
        "davidlibland/simple_ddpm",
        "src/simple_diffusion/gaussian_1d/train.py",
        ("src/simple_diffusion",),
        swaps=(
            Swap("import NeptuneLogger, ", "import "),
            Swap("n_epochs=3000", "n_epochs=200"),
            Swap("batch_size=1000", "batch_size=500"),
        ),
        path=("src",),
        judged={"FL402": "right: `generate` keeps the graph of all its steps"},
    ),
)
