import torch
from torch import autograd, nn, optim


class Generator:
    def __init__(self, model, steps=0):
        self.model = model
        self.steps = steps

    def generate(self, data):
        self.model.eval()
        with torch.no_grad():
            code = self.model.encode(data)
        mesh = self.extract(code)
        if self.steps > 0:
            self.refine(mesh, code)
        return mesh

    def extract(self, code):
        mesh = make_mesh(code)
        normals = []
        for part in torch.split(torch.FloatTensor(mesh.vertices), 1000):
            part.requires_grad_()
            self.model.decode(part, code).logits.sum().backward()
            normals.append(-part.grad)
        return mesh

    def refine(self, mesh, code):
        self.model.eval()
        v = nn.Parameter(torch.FloatTensor(mesh.vertices).clone())
        optimizer = optim.RMSprop([v], lr=1e-4)
        for _ in range(self.steps):
            optimizer.zero_grad()
            points = v.mean(dim=1)
            value = torch.sigmoid(self.model.decode(points, code).logits)
            normal = -autograd.grad([value.sum()], [points], create_graph=True)[0]
            loss = (value - 0.5).pow(2).mean() + 0.01 * normal.pow(2).mean()
            loss.backward()
            optimizer.step()
        return mesh
