"""What masked sums cost in a round: CPU seconds of one client and of the server, and bytes sent.

python -m benchmarks.masked [--modes strict recover] [--clients 4 16 64] [--parameters 100000]

In mode "recover" one client in sixteen drops out. "plain" is the same exchange without masks: a
client writes its float32 numbers as bytes, and the server adds them up in float64.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.machine import describe
from evenhand.secure import (
    Cohort,
    Collection,
    Context,
    Format,
    Ledger,
    Member,
    Node,
    SecureSums,
    Trust,
    digest,
)


@dataclass
class Cost:
    """Seconds and bytes of one exchange."""

    client: float = 0.0  # to encode and mask
    shares: float = 0.0  # of this, to share secrets and seal boxes
    holder: float = 0.0  # to open boxes
    server: float = 0.0
    sent: int = 0  # by a client
    plain_client: float = 0.0
    plain_server: float = 0.0


def measured(clients: int, parameters: int, mode: str) -> Cost:
    """One exchange with all its clients in this process."""
    settings, random, cost = SecureSums(mode=mode), np.random.default_rng(0), Cost()
    nodes = [Node(Ledger(), f"{client}", "run", Trust()) for client in range(clients)]
    members = (Member(i, node.announced(), 1 / clients) for i, node in enumerate(nodes))
    cohort = Cohort(tuple(members))
    step = random.normal(size=parameters).astype(np.float32)
    total = {"delta": {"w": step}, "weight": np.array(1 / clients)}
    format = Format.of(total, clients, weights=True)
    context = Context(
        *("run", 1, 1, 0, "train", "", digest("model"), cohort.digest(), format.digest()),
        settings.described(),
    )
    server = Collection(cohort, context, format, settings)
    sending = clients - clients // 16 if mode == "recover" else clients
    plain = np.zeros(parameters)
    for client in range(clients if mode == "strict" else sending):
        begin = time.process_time()
        vector, _ = format.encode(total, 1.0)
        masked = nodes[client].mask(vector, client, cohort, context, settings)
        cost.client += (time.process_time() - begin) / sending
        begin = time.process_time()
        nodes[client].mask(vector, client, cohort, context, settings)  # shares are kept
        cost.shares -= (time.process_time() - begin) / sending
        begin = time.process_time()
        server.keep(client, masked)
        cost.server += time.process_time() - begin
        cost.sent = masked.vector.nbytes + sum(map(len, masked.boxes.values()))
        begin = time.process_time()
        content = step.tobytes()
        cost.plain_client += (time.process_time() - begin) / sending
        begin = time.process_time()
        plain += np.frombuffer(content, dtype=np.float32)
        cost.plain_server += time.process_time() - begin
    cost.shares += cost.client
    chosen, requests = server.choose(), server.requests()
    for holder in list(requests)[: server.required]:
        begin = time.process_time()
        opened = nodes[holder].open_boxes(
            chosen, requests[holder], holder, cohort, context, settings
        )
        cost.holder += (time.process_time() - begin) / server.required
        server.learn(holder, opened)
    begin = time.process_time()
    found = server.result().total["delta"]["w"]
    cost.server += time.process_time() - begin
    assert np.abs(found - plain).max() < 1e-6
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = ["strict", "recover"]
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--parameters", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    print(f"{describe()}\n")
    print(
        "| mode | clients | parameters | client | of it shares | holder | server |"
        " sent, MB | plain client | plain server |"
    )
    print("|" + "---|" * 10)
    for mode in arguments.modes:
        for clients in arguments.clients:
            for parameters in arguments.parameters:
                cost = measured(clients, parameters, mode)
                print(
                    f"| {mode} | {clients} | {parameters:,} | {cost.client:.3f} |"
                    f" {max(0.0, cost.shares):.3f} | {cost.holder:.3f} | {cost.server:.3f} |"
                    f" {cost.sent / 1e6:.2f} | {cost.plain_client:.4f} | {cost.plain_server:.4f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
