"""How a node answers the messages of a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, RecordDict
from torch import nn

from evenhand.algorithm import Algorithm
from evenhand.calls import OutputFunction
from evenhand.data.federation import Federation
from evenhand.engines.client import SingleClient
from evenhand.engines.work import Evaluate, Train
from evenhand.errors import RunError, SpecError
from evenhand.flower import bundle, records
from evenhand.flower.answering import by_owner, folder_of, name_of
from evenhand.flower.audit import audited, count_answer
from evenhand.flower.cells import without_small_cells
from evenhand.flower.checks import require_finite
from evenhand.flower.masked.count import by_size, masked_counts
from evenhand.flower.masked.owner import node_of, tell_fingerprints, trusts
from evenhand.flower.masked.told import MASKS
from evenhand.flower.masked.work import (
    Masking,
    nothing_to_evaluate,
    require_sound,
    require_sums,
)
from evenhand.flower.memory import KEEP_RUNS, NodeMemory
from evenhand.flower.modules import build_module
from evenhand.flower.node_data import as_federation, with_groups
from evenhand.flower.policy import NO_POLICY, Policy, misspelt
from evenhand.flower.registration import report_data
from evenhand.flower.secret_order import SecretOrder, order_key, with_own_secret
from evenhand.flower.sharing import SHARES, NotShared, require_permission
from evenhand.flower.wire import read_normalisation, read_work, with_metrics, with_own_norms
from evenhand.losses import LossFunction
from evenhand.messages import Reply
from evenhand.metrics.metric import Metric
from evenhand.metrics.trying import measured
from evenhand.model import Model

if TYPE_CHECKING:
    from evenhand.flower.columns.wanted import Columns
    from evenhand.secure import Node

log = logging.getLogger(__name__)

Config = Mapping[str, Any]  # the node config that the node was started with


@dataclass(frozen=True)
class NodeApp:
    """How a node answers messages."""

    model: nn.Module | Callable[..., nn.Module]
    load_data: Callable[[Config], Any]
    algorithm: Algorithm | None
    loss: str | LossFunction | None
    limit: int
    share: str
    columns: Columns | None = None
    output: OutputFunction | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def tell(self, content: RecordDict, context: Context) -> RecordDict:
        """Sums of the node's columns, for a codebook."""
        from evenhand.flower.columns.agreeing import answer_about_columns

        policy, wanted = Policy.of_node(context.node_config), self.columns
        if wanted is None:
            raise RunError("client_app has no columns; give it those of server_app")

        def answer() -> RecordDict:
            about = content.config_records["about"]
            table = by_owner("load_data", lambda: self.load_data(context.node_config))
            found = answer_about_columns(wanted, table, about, policy, name_of(context))
            return records.reply_content(Reply(), found, self.limit)

        return audited(policy, folder_of(context), content, context, "columns", answer)

    def report(self, content: RecordDict, context: Context) -> RecordDict:
        """What the server may know about the node's data beforehand."""
        policy = Policy.of_node(context.node_config)
        if "policy" not in context.node_config:
            log.warning(NO_POLICY)
        for name, meant in misspelt(context.node_config).items():
            log.warning("unknown key %r in the node config; did you mean %r?", name, meant)

        def answer() -> RecordDict:
            data, left_out = self._data(content, context, policy)
            for why, count in () if data.encoding is None else data.encoding.dropped:
                log.warning("excluded %d rows with %s", count, why)
            for part, count in left_out.items():
                log.warning(
                    "%s data: excluded %d samples of groups with fewer than %d here (min-cell in"
                    " the policy); merge groups in the table to use them",
                    *(part, count, policy.min_cell),
                )
            policy.permits_samples(int(data.sizes("train")[0]))
            about = content.get("about")
            asked = about if isinstance(about, ConfigRecord) else ConfigRecord()
            share, hidden = self._share(context, policy), asked.get("counts") == "masked"
            if share == "masked" and not hidden:
                raise NotShared(
                    'its owner shares only masked sums (share="masked"), and the run asks for its'
                    " counts; use secure=SecureSums()"
                )
            known = (name_of(context), share)
            if "masked" not in asked:
                return records.reply_content(*report_data(data, *known), self.limit)
            side = self._masks(str(asked["masked"]), context, policy, data)
            tell_fingerprints(side, trusts(context.node_config, policy))
            seal = side.key().seal if hidden else b""
            found = report_data(data, *known, side.announced(), seal)
            return records.reply_content(*found, self.limit)

        return audited(policy, folder_of(context), content, context, "census", answer)

    def count(self, content: RecordDict, context: Context) -> RecordDict:
        """The node's numbers of samples, as a part of a masked sum."""
        policy = Policy.of_node(context.node_config)

        def answer() -> RecordDict:
            task, about = records.read_task(content, self.limit)
            data = with_groups(self._data(content, context, policy)[0], tuple(about["groups"]))
            side = self._masks(records.text(about, "run"), context, policy, data)
            return masked_counts(side, content, about, task, data, self.limit)

        return audited(policy, folder_of(context), content, context, "count", answer)

    def work(self, content: RecordDict, context: Context) -> RecordDict:
        """The client's reply to a task."""
        policy, folder = Policy.of_node(context.node_config), folder_of(context)
        return audited(
            policy, folder, content, context, "task", lambda: self._work(content, context, policy)
        )

    def _work(self, content: RecordDict, context: Context, policy: Policy) -> RecordDict:
        task, about = records.read_task(content, self.limit)
        share, masked = self._share(context, policy), MASKS in about
        if share == "masked" and not masked:
            raise NotShared('its owner shares only masked sums (share="masked")')
        client, round, counted, seed, session = (
            records.whole(about, name) for name in ("client", "round", "counted", "seed", "session")
        )
        work = read_work(records.text(about, "how"), self.algorithm)
        evaluation = (
            read_work(records.text(about, "look"), self.algorithm) if "look" in about else None
        )
        data = with_groups(self._data(content, context, policy)[0], tuple(about["groups"]))
        module = by_owner("model", lambda: build_module(self._model(content), seed))
        parameters = sum(leaf.numel() for leaf in module.parameters())
        looks = evaluation is not None and (not masked or int(data.sizes(evaluation.part)[0]) > 0)
        for asked in (work, evaluation if looks else None):
            if asked is not None:
                policy.permits(asked, data, parameters, records.text(about, "loss"))
        masking = None
        if masked:
            side = self._masks(records.text(about, "run"), context, policy, data)
            masking = Masking.begin(side, content, about, work, task, evaluation, looks)
            task = by_size(task, data, masking.told.settings.least)
        norms = read_normalisation(about.get("normalisation"))
        model = Model(module, self.loss or records.text(about, "loss"), self.output, norms)
        model.check(data)
        own = partial(measured, model, data, self.metrics)
        work = with_metrics(work, records.text(about, "how"), own)
        if evaluation is not None:
            evaluation = with_metrics(evaluation, records.text(about, "look"), own)
        folder = folder_of(context)
        for asked in (work, evaluation):
            if asked is not None:
                count_answer(policy, folder, asked.name)
        hidden = work.local is not None and work.local.dp is not None
        if policy.order == "node" and isinstance(work, Train) and not hidden:
            key = order_key(folder, content)
            work = replace(work, local=SecretOrder.of(work.local, key, policy.min_batch))
        keep = int(context.node_config.get("keep-runs", KEEP_RUNS))
        memory = NodeMemory(
            folder, records.text(about, "run"), client, session=session, keep_runs=keep
        )
        work = with_own_norms(work, model)
        evaluation = None if evaluation is None else with_own_norms(evaluation, model)
        node = SingleClient(model, data, seed, client)
        remembered = memory.recall(work.first_memory(model.init()), counted)
        if hidden:
            work = with_own_secret(work, order_key(folder, content), data, remembered)

        task, evaluated = bundle.split_task(task)
        scores = None
        if isinstance(evaluation, Evaluate) and not looks:
            scores = nothing_to_evaluate(evaluation, evaluated, model, data)
        elif evaluation is not None:
            scores, _ = node.answer(evaluation, evaluated, round, remembered)
            require_permission(share, evaluation, scores)
        reply, remembered = node.answer(work, task, round, remembered)
        require_permission(share, work, reply)
        if work.must_be_finite:
            require_finite(reply, remembered, task.shared)
        if work.local is not None:
            memory.remember(round, counted, remembered)
        if masking is not None:
            loss = records.text(about, "loss")
            asked_of = ((work, task, reply), (evaluation if looks else None, evaluated, scores))
            for asked, sent, found in asked_of:
                if asked is not None and found is not None:
                    require_sums(asked, found)
                    require_sound(asked, sent, found, data, model, client, loss)
            return masking.reply(work, reply, scores, self.limit)
        if scores is not None:
            reply = bundle.join_replies(reply, scores)
        about = {"client": client, "round": round, "work": work.name}
        return records.reply_content(reply, about, self.limit)

    def _masks(self, run: str, context: Context, policy: Policy, data: Federation) -> Node:
        """The node's side of masked sums in a run."""
        name = data.names[0] if data.names else name_of(context)
        return node_of(context.node_config, policy, folder_of(context), name, run)

    def _model(self, content: RecordDict) -> nn.Module | Callable[[], nn.Module]:
        if self.columns is None:
            return self.model
        from evenhand.flower.columns.agreeing import carried

        return partial(self.model, carried(content))

    def _data(
        self, content: RecordDict, context: Context, policy: Policy
    ) -> tuple[Federation, dict[str, int]]:
        """The node's data without groups that are too small, and how many samples that excludes
        from each split."""

        def load() -> Federation:
            found = self.load_data(context.node_config)
            if self.columns is None:
                return as_federation(found)
            from evenhand.flower.columns.agreeing import carried

            return carried(content).federation(found, strict=False)

        data = by_owner("load_data", load)
        return without_small_cells(data, policy.min_cell)

    def _share(self, context: Context, policy: Policy) -> str:
        found = str(context.node_config.get("share", policy.share or self.share))
        if found not in SHARES:
            raise SpecError(f"share in its node config must be one of {', '.join(SHARES)}")
        allowed = (found, policy.share or found)  # the file and the config are both the owner's
        return min(allowed, key=tuple(SHARES).index)
