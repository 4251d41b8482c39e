"""FL502 loader-in-process: real data are loaded and decoded in the training process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import methods_of

# Reading or decoding a sample: what workers are for.
_READS = frozenset(
    {
        "PIL.Image.open",
        "cv2.imread",
        "numpy.load",
        "torch.load",
        "torchaudio.load",
        "librosa.load",
        "soundfile.read",
        "imageio.imread",
    }
    | {
        "skimage.io.imread",
        "torchvision.io.read_image",
        "torchvision.io.decode_image",
        "torchvision.io.read_video",
        "h5py.File",
        "decord.VideoReader",
        "nibabel.load",
        "pydicom.dcmread",
        "SimpleITK.ReadImage",
        "tifffile.imread",
        "rasterio.open",
        "pandas.read_csv",
        "pandas.read_parquet",
        "scipy.io.wavfile.read",
        "scipy.io.loadmat",
    }
)
_SYNTHETIC = frozenset({"torchvision.datasets.FakeData"})
_PARTS = frozenset({"torch.utils.data.Subset", "torch.utils.data.random_split"})


class LoaderInProcess(Rule):
    code = "FL502"
    name = "loader-in-process"
    severity = Severity.INFO
    what = "A `DataLoader` over data that is read and decoded sample by sample has `num_workers=0`."
    why = "With no workers, reading, decoding and transforming happen in the training process, between two steps: the device waits for every batch."
    instead = "`DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True)`; then measure with `fallline measure time`."
    references = (
        "https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading",
    )
    tokens = (b"DataLoader",)

    wrong = (
        """\
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

train = datasets.ImageFolder("data/train", transforms.ToTensor())
loader = DataLoader(train, batch_size=64, shuffle=True)  # FL502
""",
        """\
import torch
from PIL import Image


class Photos(torch.utils.data.Dataset):
    def __init__(self, paths, transform):
        self.paths, self.transform = paths, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.transform(Image.open(self.paths[i]).convert("RGB"))


def make(paths, transform):
    dataset = Photos(paths, transform)
    return torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=0)  # FL502
""",
    )
    right = (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets

in_memory = DataLoader(TensorDataset(torch.randn(100, 3)), batch_size=10)
workers = DataLoader(datasets.ImageFolder("data"), batch_size=64, num_workers=8)
""",
        """\
from torch.utils.data import DataLoader
from torchvision import datasets


def make(args, options):
    data = datasets.ImageFolder(args.data)
    return DataLoader(data, 64, num_workers=args.workers), DataLoader(data, 64, **options)
""",
        """\
import torch


class Numbers(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 3)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


loader = torch.utils.data.DataLoader(Numbers(100), batch_size=10)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls("torch.utils.data.DataLoader"):
            if Module.has_star(call):
                continue
            workers = Module.argument(call, 5, "num_workers")
            if workers is not None and module.number(workers) != 0:
                continue
            dataset = Module.argument(call, 0, "dataset")
            if dataset is not None and _reads_samples(module, dataset):
                yield self.finding(
                    module.location(call),
                    "With num_workers=0 every sample is read and decoded in the training process while the device waits. Give the loader workers.",
                )


def _reads_samples(module: Module, node: ast.expr) -> bool:
    made = values_of(module).built(node)
    if not isinstance(made, ast.Call):
        return _handed_over(module, made)
    name = module.resolve(made.func) or ""
    if name in _PARTS and made.args:
        return _reads_samples(module, made.args[0])
    if name.startswith("torchvision.datasets."):
        return name not in _SYNTHETIC
    found = None
    if isinstance(made.func, ast.Name) and made.func.id in module.classes:
        found = (module, module.classes[made.func.id])
    elif name and module.project is not None:
        found = module.project.find_class(name, module)
    return found is not None and _item_reads(*found)


_DATASET = ("torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset")


def _handed_over(module: Module, node: ast.expr) -> bool:
    """`train_set`, made by somebody else, in a file with one Dataset, which reads its samples."""
    name = last_name(node).lower()
    own = [c for c in module.classes.values() if set(module.bases(c)) & set(_DATASET)]
    return ("data" in name or "set" in name) and len(own) == 1 and _item_reads(module, own[0])


def _item_reads(home: Module, cls: ast.ClassDef) -> bool:
    """`__getitem__`, or a method of the class that it calls, opens or decodes something."""
    methods = {m.name: m for m in methods_of(cls)}
    queue, seen = ["__getitem__"], set()
    while queue:
        name = queue.pop()
        if name in seen or name not in methods:
            continue
        seen.add(name)
        for node in ast.walk(methods[name]):
            match node:
                case ast.Call(ast.Name("open")):
                    return True
                case ast.Call(func) if home.resolve(func) in _READS:
                    return True
                case ast.Call(ast.Attribute(ast.Name("self"), method)):
                    queue.append(method)
    return False
