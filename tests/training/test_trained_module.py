"""The trained network, ready to use."""

from __future__ import annotations

import pytest
import torch

import evenhand as eh


@pytest.fixture(scope="module")
def fed():
    return eh.datasets.digits(clients=4, seed=0)


def test_module_is_the_trained_network(fed):
    start = torch.nn.Linear(64, 10)
    before = start.weight.detach().clone()
    result = eh.fit(start, fed, eh.FedAvg(), rounds=2)
    trained = result.module()
    assert torch.equal(trained.weight, result.params["weight"])
    assert not trained.training
    assert result.network is start
    assert torch.equal(start.weight, before)
    x = fed.test.x
    assert torch.equal(trained(x).argmax(1), torch.from_numpy(result.predict(x)))


def test_a_client_has_its_own_module(fed):
    result = eh.fit(torch.nn.Linear(64, 10), fed, eh.Ditto(lam=0.1), rounds=2)
    for client, own in enumerate(result.personal):
        assert torch.equal(result.module(client=client).weight, own["weight"])
    assert torch.equal(result.module(client="2").weight, result.personal[2]["weight"])
    assert torch.equal(result.module().weight, result.params["weight"])
    with pytest.raises(ValueError, match="unknown client 'x'"):
        result.module(client="x")


def test_a_shared_model_belongs_to_no_client(fed):
    result = eh.fit(torch.nn.Linear(64, 10), fed, eh.FedAvg(), rounds=1)
    with pytest.raises(ValueError, match="all clients share one model; leave out client"):
        result.module(client=0)


@pytest.mark.parametrize("alone", [eh.LocalOnly(), eh.FedAvg()])
def test_without_a_shared_model_a_client_must_be_named(fed, tmp_path, alone):
    # what clients share was not trained, or has the initial normalisation
    layers = torch.nn.Sequential(torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))
    result = eh.fit(layers, fed, alone, rounds=1, normalisation="local")
    for use in (result.module, lambda: result.export(tmp_path / "shared.pt2")):
        with pytest.raises(ValueError, match="no shared model, only one for each client: give"):
            use()
    assert not (tmp_path / "shared.pt2").exists()
    assert torch.equal(result.module(client=1)[0].weight, result.personal[1]["0.weight"])


def test_a_result_from_a_directory_needs_the_network(fed, tmp_path):
    eh.fit(torch.nn.Linear(64, 10), fed, eh.FedAvg(), rounds=1, out=tmp_path / "run")
    trial = eh.load(tmp_path / "run").trial()
    assert torch.equal(trial.module(module=torch.nn.Linear(64, 10)).weight, trial.params["weight"])
    with pytest.raises(ValueError, match="give module=, the network that was trained"):
        trial.module()
