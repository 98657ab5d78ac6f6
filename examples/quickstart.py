"""Train with FedAvg and with fair methods on an unfair federation, and compare the clients left
behind."""

import torch

import evenhand as eh

# unequal sizes, skewed labels, five clients with rotated, noisy images
fed = eh.datasets.digits(clients=20, seed=0)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
local = eh.LocalSGD(lr=0.2, epochs=1, batch_size=16)

for algorithm in (eh.FedAvg(), eh.PropFair(M=2.0), eh.AFL(lr_lambda=0.1), eh.Ditto(lam=0.1)):
    result = eh.fit(module, fed, algorithm, loss="cross_entropy", rounds=60, local=local, seed=0)
    numbers = "   ".join(f"{name} {100 * value:5.1f}" for name, value in result.summary.items())
    print(f"{type(algorithm).__name__:9} {numbers}")
