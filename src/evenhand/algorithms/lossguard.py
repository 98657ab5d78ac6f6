"""A guard against overstated losses, for methods that weight clients by reported losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenhand.algorithm import Algorithm, Certificate, Info, State, normalised, visible
from evenhand.algorithms.afl import AFL
from evenhand.algorithms.wrapper import Wrapper
from evenhand.cohort import Draw
from evenhand.data.population import Census
from evenhand.errors import require, require_number
from evenhand.messages import Replies
from evenhand.simplex import project_capped
from evenhand.tree import Tree


@dataclass(frozen=True)
class LossGuard(Wrapper):
    """Stop a client from taking over the federation by reporting a huge loss.

        reported losses  <-  min(loss, median + mads * MAD) over the clients that report in a round
        weights          <-  their projection on {lam : sum lam = 1, 0 <= lam_i <= cap}

    A fair method that favours high losses invites clients to overstate theirs. Both limits act on
    the server, before the inner method sees losses and after it has set the cohort's weights (and
    its lam, if it has one). The projection is the nearest admissible point; capping and
    renormalising would leave weights above the cap.

    Args:
        mads: how many median absolute deviations above the median a loss may be.
        cap: the largest weight of any client, at least one over the number of participants.
        inner: a method whose server sees losses: AFL, DRFA, DeltaFL, AAggFF. For GIFAIR without
            teams, the cap limits the coefficients, not the scaled steps, which its strength bounds;
            for FedFV and AdaFed, only losses are clipped.
    """

    mads: float = 3.0
    cap: float = 0.5
    inner: Algorithm = AFL()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("mads", self.mads, "[0, inf)", "3 is usual")
        require_number("cap", self.cap, "(0, 1]", "1 does not limit weights")

    def init(self, params: Tree, census: Census) -> State:
        sees = any(
            what in ("its loss", "its loss, when asked") for what in visible(self.inner, census)
        )
        require(
            sees,
            "LossGuard needs a method whose server sees losses in every round, but that of {} does"
            " not; use AFL, DRFA, DeltaFL or AAggFF",
            self.inner,
        )
        n = census.clients
        require(
            self.cap * n >= 1 - 1e-12,
            "cap {} for {} clients leaves weights below the mass 1; use at least {:g}",
            self.cap,
            n,
            1 / n,
        )
        return self._capped(self.inner.init(params, census))

    def learn(self, state: State, replies: Replies) -> State:
        return self._capped(super().learn(state, self._clipped(replies)))

    def server(self, state: State, replies: Replies) -> tuple[State, Info]:
        state, info = self.inner.server(state, self._clipped(replies))
        return self._capped(state), info

    def reweigh(self, state: State, draw: Draw) -> Draw:
        draw = super().reweigh(state, draw)
        if not len(draw.ids):
            return draw
        share, cap = normalised(draw.weight), self._cap(draw.weight).clamp(min=1 / len(draw.ids))
        over, capped = (share > cap).any(), project_capped(share, cap)
        return Draw(
            draw.ids, *(torch.where(over, capped, values) for values in (draw.weight, draw.share))
        )

    def join(self, state: State, before: State, after: State) -> State:
        return self._capped(self.inner.join(state, before, after))

    def certificate(self, state: State, losses: Tensor, census: Census) -> Certificate | None:
        # other weights are computed without the cap
        return super().certificate(state, losses, census) if "lam" in state else None

    def _clipped(self, replies: Replies) -> Replies:
        """Return the replies with every reported loss clipped."""

        def clip(given: Tensor) -> Tensor:
            loss = given.double()  # quantiles need full precision
            middle = loss.quantile(0.5)
            most = middle + self.mads * (loss - middle).abs().quantile(0.5)
            return loss.clamp(max=most).to(given.dtype)

        if not replies.each:
            return replies
        each = {
            name: clip(value) if name.startswith("loss") and len(value) else value
            for name, value in replies.each.items()
        }
        return replies._replace(each=each)

    def _capped(self, state: State) -> State:
        if "lam" not in state:
            return state
        lam: Tensor = state["lam"]
        return {
            **state,
            "lam": torch.where((lam > self.cap).any(), project_capped(lam, self._cap(lam)), lam),
        }

    def _cap(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.cap, dtype=torch.float64, device=like.device)
