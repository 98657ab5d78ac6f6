"""FedHEAL: consistent parameter updates and weights by distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand import tree
from evenhand.algorithm import Algorithm, Info, Memory, State, Weighting
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.data.samples import Batch
from evenhand.errors import require_number
from evenhand.messages import Asked, Entries, Entry, Replies, Reply, Task
from evenhand.model import Model
from evenhand.tree import Tree


@dataclass(frozen=True)
class FedHEAL(Algorithm, Weighting):
    """Ignore updates of parameters that often change direction, and give more weight to clients
    whose models move far.

        mask      M_ij = 1 if more than a share tau of client i's earlier updates of parameter j
                  had the sign of Delta_ij (>= 0 or < 0); all 1 in its first round
        distance  D_i = sum over tensors of |M_i Delta_i|
        weight    v_i <- (1 - beta) v_i + beta D_i / mean D,  w_i <- w_i + v_i,  first 0 and 1
        server    theta_j <- theta_j - sum_i w_i M_ij Delta_ij / sum_i w_i M_ij
                  (Chen, Huang, Ye, CVPR 2024)

    A parameter that everyone masks stays. All participants count the same at first, whatever their
    data. Clients keep their weights and counts of signs, and the server only needs sums: each
    client sends two multiples of its update and of its mask, one of them in proportion to D_i,
    because nobody knows the mean of D yet. It learns that mean when it takes part again.

    With a sampled cohort, counts are of a client's own rounds, the mean of D is over the cohort,
    and w_i is divided by the weight of a client that has taken part as often with mean distances.
    In rounds with all clients this division cancels.

    Args:
        tau: share of earlier updates that must have had the same sign; below 0 nothing is masked,
            from 1 on everything is after the first round.
        beta: how much of the distance enters the weights; 0 keeps them equal.
    """

    tau: float = 0.3
    beta: float = 0.4

    def __post_init__(self) -> None:
        require_number("tau", self.tau, "(-inf, inf)", "below 0 nothing is masked")
        require_number("beta", self.beta, "[0, 1]", "0 gives equal weights")

    def init(self, params: Tree, census: Census) -> State:
        # of the last round in which a client took part
        return {"model": params, "mean_distance": torch.zeros_like(census.weight)}

    def reweigh(self, state: State, draw: Draw) -> Draw:
        equal = torch.full_like(draw.weight, 1 / max(len(draw.ids), 1))
        return Draw(draw.ids, equal, equal)

    def task(self, state: State, ids: Tensor) -> Task:
        return Task({"model": state["model"]}, {"mean_distance": state["mean_distance"][ids]})

    # ---- the client

    def memory(self, params: Tree) -> Memory:
        zero = tree.leaves(params)[0].new_zeros(())
        return {
            "rounds": zero,
            "rises": tree.zeros_like(params),  # rounds in which Delta_ij >= 0
            "distance": zero,  # D_i of its last round
            # w and v of this client, and of one whose distance is always the mean
            "weight": zero.new_ones(2),
            "increment": zero.new_zeros(2),
        }

    def reply(
        self, model: Model, start: Tree, end: Tree, data: Batch, task: Task, memory: Memory
    ) -> tuple[Reply, Memory]:
        delta = tree.sub(start["model"], end["model"])
        rounds = memory["rounds"]
        mask = tree.map(lambda d, up: self._mask(d, up, rounds), delta, memory["rises"])
        masked = tree.map(torch.mul, mask, delta)
        distance = torch.stack([leaf.square().sum().sqrt() for leaf in tree.leaves(masked)]).sum()

        weight, increment = self._caught_up(memory, task.own["mean_distance"])
        known = weight + (1 - self.beta) * increment  # this round's w, less its beta D_i / mean D
        usual = known[1] + self.beta
        a = task.own["weight"].to(distance.dtype)
        kept, far = a * known[0] / usual, a * distance / usual
        sent = {
            "delta": tree.scale(masked, kept),
            "mask": tree.scale(mask, kept),
            "far_delta": tree.scale(masked, far),
            "far_mask": tree.scale(mask, far),
            "distance": a * distance,
            "weight": a,
        }
        rises = tree.map(lambda d, up: up + (d >= 0).to(up.dtype), delta, memory["rises"])
        return Reply(sent), {
            "rounds": rounds + 1,
            "rises": rises,
            "distance": distance,
            "weight": weight,
            "increment": increment,
        }

    def _mask(self, delta: Tensor, rises: Tensor, rounds: Tensor) -> Tensor:
        """Return where enough earlier updates had this sign, as ones and zeros."""
        alike = torch.where(delta >= 0, rises, rounds - rises)
        return ((alike > self.tau * rounds) | (rounds == 0)).to(delta.dtype)

    def _caught_up(self, memory: Memory, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return w and v after the client's last round, whose mean distance is known by now.

        Its share counts as the mean if nobody moved, or if its reply was never used.
        """
        weight, increment, distance = memory["weight"], memory["increment"], memory["distance"]
        mean = mean.to(distance.dtype)
        ratio = torch.where(mean > 0, distance / torch.where(mean > 0, mean, 1.0), 1.0)
        next_increment = (1 - self.beta) * increment + self.beta * torch.stack(
            [ratio, torch.ones_like(ratio)]
        )
        before = memory["rounds"] > 0
        return (
            torch.where(before, weight + next_increment, weight),
            torch.where(before, next_increment, increment),
        )

    def entries(self, asked: Asked) -> Entries:
        a = asked.task.own["weight"]
        # all are compared per a_i: a client that scales update and mask alike gains no weight
        update, mask = Entry(kind="update", per=a), Entry(kind="update", low=0.0, per=a)
        return {
            "delta": update,
            "mask": mask,
            "far_delta": update,
            "far_mask": mask,
            "distance": mask,
            "weight": Entry(known=a),
        }

    def scales(self, own: Tree) -> dict[str, Tensor]:
        mean = own["mean_distance"]
        # 0 before the first mean: such a client then makes up no part of the others' sum
        return {"mean_distance": torch.where(mean > 0, 1 / mean, 0.0)}

    # ---- the server

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        sums, total = replies.sums, replies.total
        mean = total["distance"] / torch.where(total["weight"] > 0, total["weight"], 1.0)
        # if nobody moved, all sums with distances are 0
        per_mean = (self.beta / torch.where(mean > 0, mean, 1.0)).to(sums["distance"].device)

        def together(kept: Tensor, far: Tensor) -> Tensor:
            return kept + per_mean * far

        top = tree.map(together, sums["delta"], sums["far_delta"])
        bottom = tree.map(together, sums["mask"], sums["far_mask"])

        def descended(p: Tensor, step: Tensor, weight: Tensor) -> Tensor:
            step = torch.where(weight > 0, step / torch.where(weight > 0, weight, 1.0), 0.0)
            return torch.sub(p, step).to(p.dtype)

        means = state["mean_distance"].index_put(
            (replies.ids,), mean.expand(len(replies.ids)).to(state["mean_distance"])
        )
        frozen = torch.cat([(leaf == 0).flatten() for leaf in tree.leaves(bottom)])
        info: Info = {"mean_distance": mean, "frozen": frozen.double().mean()}
        model = tree.map(descended, state["model"], top, bottom)
        return {**state, "model": model, "mean_distance": means}, info
