"""Train FedAvg and three fair methods to convergence, and compare the clients served worst."""

import torch

import evenhand as eh

# twenty clients of unequal size; five of them hold rotated, noisy images
fed = eh.datasets.digits(clients=20, seed=0)
torch.manual_seed(0)
module = torch.nn.Linear(64, 10)
local = eh.LocalSGD(lr=0.5, epochs=1, batch_size=16, weight_decay=0.002)

print("test accuracy, %   mean   worst 10 % of clients")
for method in (eh.FedAvg(), eh.QFFL(q=1.0), eh.AFL(lr_lambda=0.1), eh.Ditto(lam=0.1)):
    result = eh.fit(module, fed, method, rounds=300, local=local)
    mean, worst = (100 * result.summary[name] for name in ("mean", "worst10"))
    print(f"{type(method).__name__:16} {mean:6.1f} {worst:8.1f}")
