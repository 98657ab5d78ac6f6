"""What the private methods of a spec will be able to claim."""

from __future__ import annotations

from evenhand.errors import SpecError
from evenhand.privacy.accounting import epsilon_of
from evenhand.privacy.planning import Plan
from evenhand.studies.runs.executing import check
from evenhand.studies.specs.spec import Spec
from evenhand.training.start import prepare

NOT_PRIVATE = "Not private: the model may reveal something about any client."


def plans(spec: Spec) -> dict[str, Plan | str]:
    """Return the plan of each method by its label, or that it is not private."""
    ready, found = check(spec), dict[str, Plan | str]()
    for method in ready.spec.methods:
        settings = ready.settings(method)
        prepared = prepare(ready.module, ready.federation, method.algorithm(), settings)
        protection = prepared.algorithm.protection()
        if protection is None:
            found[method.label] = NOT_PRIVATE
            continue
        then = protection.record(settings.rounds, prepared.model.size, ())
        epsilon = epsilon_of(then.scheme, then.noise, then.releases, then.delta)
        found[method.label] = Plan(
            epsilon, then.delta, then.noise, then.releases, then.scheme, then.ratio
        )
    if all(isinstance(plan, str) for plan in found.values()):
        raise SpecError(
            "the spec has no private method; wrap one, as in -a private:inner=fedavg,epsilon=3"
        )
    return found
