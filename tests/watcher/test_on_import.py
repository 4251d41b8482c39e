"""The watcher is there whenever torch is: whatever looks for torch first, whoever imports it, and in whatever way."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

# Small and imported in a moment; as in the real one, submodules are imported while it is being executed.
TORCH = {
    "torch/__init__.py": "import torch._C\nfrom torch import nn\nDONE = True\n",
    "torch/_C.py": "",
    "torch/nn.py": "",
    "torch-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n",
}

_SPEC = "import importlib.util\nassert importlib.util.find_spec('torch') is not None\n"
_VERSION = "import importlib.metadata\nassert importlib.metadata.version('torch') == '9.9'\n"
_TRY = "try:\n    import torch\nexcept ImportError:\n    torch = None\n"
_NAMED = "import importlib\ntorch = importlib.import_module('torch')\nassert torch.DONE\n"
_LOADED = "import sys\nHAS_TORCH = 'torch' in sys.modules\n"
_LAZY_CLASS = """
import importlib, types

class LazyModule(types.ModuleType):
    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)

torch = LazyModule("torch")
"""
_LAZY_LOADER = """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["torch"] = module
spec.loader.exec_module(module)
import builtins
assert not getattr(builtins, "installed", 0), "nothing has been executed yet"
"""
_FINDER = """
import importlib.util, sys

class Finder:
    asking = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.asking:
            return None
        self.asking = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asking = False

sys.meta_path.insert(0, Finder())
"""
_PATH_FINDER = """
import sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name == "torch" else None

sys.meta_path.insert(0, Finder())
"""

# How packages look for torch before, or instead of, importing it.
PROBES = {
    "transformers": _SPEC + _VERSION + _LAZY_CLASS,
    "datasets": _SPEC + _VERSION,
    "evaluate": _SPEC + _VERSION,
    "accelerate": _SPEC + "import importlib.metadata\nimportlib.metadata.metadata('torch')\n",
    "peft": _SPEC,
    "trl": _SPEC + _LAZY_CLASS,
    "diffusers": _SPEC + _VERSION + _LAZY_CLASS,
    "sentence_transformers": _SPEC,
    "optimum": _SPEC + _VERSION,
    "huggingface_hub": _VERSION,
    "safetensors": "",  # only safetensors.torch imports it
    "tokenizers": "",
    "timm": "import torch\nfrom torch import nn\n",
    "torchvision": "import torch\n" + _SPEC,
    "torchaudio": _SPEC + "import torch\n",
    "lightning": _SPEC + _VERSION + "import torch\n",
    "torchmetrics": _SPEC + _NAMED,
    "deepspeed": _TRY,
    "bitsandbytes": "import torch\n",
    "xformers": _SPEC + "import torch\n",
    "fastai": "from torch import *\n",
    "monai": "torch = __import__('torch')\n",
    "kornia": "import torch.nn\n",
    "wandb": _LAZY_LOADER,
    "mlflow": _LAZY_CLASS,
    "tensorboard": _LAZY_CLASS,
    "sklearn": _LOADED,
    "scipy": _LOADED,
    "einops": _LOADED,
    "optuna": _TRY,
    "ray": _TRY,
    "thinc": _TRY,
    "pandas": "import importlib\nimportlib.import_module('json')\n",
    # not one package, but ways of looking that are met in the wild
    "find_loader": "import pkgutil\nassert pkgutil.find_loader('torch') is not None\n",
    "iter_modules": "import pkgutil\nassert 'torch' in {m.name for m in pkgutil.iter_modules()}\n",
    "wrapt": _FINDER,  # and ddtrace: a finder in front that asks all the others
    "typeguard": _PATH_FINDER,  # and jaxtyping: one that finds chosen packages by itself
    "by_hand": """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
module = importlib.util.module_from_spec(spec)
sys.modules["torch"] = module
spec.loader.exec_module(module)
""",
    "reload": "import importlib, torch\nimportlib.reload(torch)\n",
    "threads": """
import threading
threads = [threading.Thread(target=__import__, args=("torch",)) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
""",
}

MAIN = """
import builtins, sys
sys.path.insert(0, {here!r})
from fallline.taps.launch import after_torch

builtins.installed = 0

def install():
    assert sys.modules["torch"].DONE, "torch is complete"
    builtins.installed += 1

after_torch(install)
import {package}
{then}
loader = type(torch.__spec__.loader).__name__, type(torch.__loader__).__name__
assert loader == ("SourceFileLoader", "SourceFileLoader"), loader
assert type(torch.__spec__).__name__ == "ModuleSpec"
assert not any(type(finder).__module__.startswith("fallline") for finder in sys.meta_path)
print(builtins.installed)
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("package", PROBES)
@pytest.mark.parametrize(
    "then", ["import torch\nassert torch.DONE", "from torch import nn\nimport torch\ntorch.DONE"]
)
def test_the_hook_fires_once_when_torch_is_complete(
    tmp_path: Path, package: str, then: str
) -> None:
    write(tmp_path, TORCH | {f"{package}/__init__.py": PROBES[package]})
    script = MAIN.format(here=str(tmp_path), package=package, then=then)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n", done.stderr


def test_an_import_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    write(tmp_path, TORCH)
    broken = "import os\nif not os.environ.pop('AGAIN', ''):\n    raise ImportError('libcudart')\n"
    (tmp_path / "torch/__init__.py").write_text(broken + TORCH["torch/__init__.py"])
    package = (
        "import os\ntry:\n    import torch\nexcept ImportError:\n    os.environ['AGAIN'] = '1'\n"
    )
    write(tmp_path, {"again/__init__.py": package})
    script = MAIN.format(here=str(tmp_path), package="again", then="import torch")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n", done.stderr


def test_a_loader_that_several_modules_share_is_left_as_it_is(tmp_path: Path) -> None:
    """One zipimporter loads all modules of its file."""
    pack = (
        "import sys, zipfile\n"
        "with zipfile.ZipFile('{0}/all.zip', 'w') as file:\n"
        "    file.writestr('torch/__init__.py', 'import other\\nDONE = True\\n')\n"
        "    file.writestr('other.py', '')\n"
        "sys.path.insert(0, '{0}/all.zip')\n"
    )
    script = MAIN.replace("SourceFileLoader", "zipimporter").format(
        here=str(tmp_path), package="pack", then="import torch, other"
    )
    write(tmp_path, {"pack/__init__.py": pack.format(tmp_path)})
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "1\n", done.stderr


# -- the real ones ---------------------------------------------------------------------------------------------

TRAIN = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
"""

INSTALLED = {
    "transformers": "import transformers\n",
    "accelerate": "from accelerate import Accelerator\n",
    "lightning": "import lightning\n",
    "pytorch_lightning": "import pytorch_lightning\n",
    "torchmetrics": "import torchmetrics\n",
    "safetensors": "import safetensors.torch\n",
    "tokenizers": "import tokenizers\n",
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter\n",
    "wandb": "import wandb\n",
    "mlflow": "import mlflow\n",
    "trackio": "import trackio\n",
    "huggingface_hub": "import huggingface_hub\n",
}


def codes(folder: Path, text: str) -> list[str]:
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [f["code"] for f in json.loads((folder / "run" / "findings.json").read_text())]


def test_a_script_that_first_asks_whether_torch_is_there_is_watched(tmp_path: Path) -> None:
    assert codes(tmp_path, _SPEC + TRAIN) == ["FL106"]


@pytest.mark.slow
@pytest.mark.parametrize("package", INSTALLED)
def test_a_script_that_imports_a_package_first_is_watched(tmp_path: Path, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert codes(tmp_path, INSTALLED[package] + TRAIN) == ["FL106"]
