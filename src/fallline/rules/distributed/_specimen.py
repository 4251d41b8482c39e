"""What the specimens of this room share: a model in DDP with its optimizer, and its data in one process, or on several ranks."""

DDP = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.CrossEntropyLoss()
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16)

"""

# on several ranks, under torchrun
RANKS = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
"""
RANKS_TRAIN = """\
for update in range(60):
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
