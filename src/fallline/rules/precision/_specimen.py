"""The opening that the specimens of this room share: a model, its data, an optimizer and a scaler."""

AMP = """\
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
loss_fn = torch.nn.CrossEntropyLoss()
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16)

"""
