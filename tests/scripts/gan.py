"""A GAN: two optimizers, two backward passes into one step, all right."""
import torch
from torch import nn

netG, netD = nn.Linear(8, 4), nn.Linear(4, 1)
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
dataloader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
n_critic = 5
for epoch in range(5):
    for i, real in enumerate(dataloader):
        netD.zero_grad()
        label = torch.ones(real.size(0), 1)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), 8))
        errD_fake = criterion(netD(fake.detach()), label * 0)
        errD_fake.backward()
        optimizerD.step()
        if i % n_critic == 0:
            netG.zero_grad()
            errG = criterion(netD(fake), label)
            errG.backward()
            optimizerG.step()
