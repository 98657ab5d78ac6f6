"""Which methods need only sums over clients, and what to use instead of one that does not."""

from __future__ import annotations

from evenhand.algorithm import Algorithm, visible
from evenhand.algorithms.wrapper import Wrapper
from evenhand.data.population import Census

# variants of a method that need only sums
VARIANTS = {
    "TERM": "use TERM(t=...) with t from -20 to 20 and without exact=True",
    "GIFAIR": "give the clients teams",
    "FAFL": 'use FAFL(eta0="mean"), or a number',
    "FairFed": "use FairFed(sums_only=True)",
    "FedFB": 'use a notion between groups, such as FedFB(notion="demographic_parity")',
}
OTHERS = "use a method that needs only sums, such as FAFL, QFFL or TERM (see evenhand algorithms)"


def require_sums_only(algorithm: Algorithm, census: Census) -> None:
    """Raise a ValueError if a method's server reads clients one by one."""
    if seen := visible(algorithm, census):
        raise ValueError(refusal(algorithm, seen))


def refusal(algorithm: Algorithm, seen: tuple[str, ...]) -> str:
    """Say why masked sums are not enough for a method, and the way out."""
    named = type(algorithm).__name__
    return (
        f"masked sums hide single clients, but {named} needs of each client: {', '.join(seen)};"
        f" {way_out(algorithm)}"
    )


def way_out(algorithm: Algorithm) -> str:
    """What to use instead of a method that reads clients one by one."""
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.inner
    return VARIANTS.get(type(algorithm).__name__, OTHERS)
