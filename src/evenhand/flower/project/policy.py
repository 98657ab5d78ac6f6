"""The policy file that ``evenhand flower new`` writes for the owners of nodes."""

from __future__ import annotations

from string import Template

_POLICY = """\
# For the owner of a node: what a server may ask of it. The file has no effect here. Copy it to the
# node, change what you like, and start the node with
#   flower-supernode ... --node-config 'policy="/etc/evenhand/policy.toml" ...'
# The node refuses a task that asks for more, and the server's log names the rule. Without a file,
# the values below apply, except for rounds-per-day (no limit) and order ("server"): a malicious
# server can then reconstruct rows.

# What the server may see about this node: "sums" (nothing about this node alone), "method" (what
# the method reads client by client) or "client" (also its scores). With "sums", a method that needs
# more, such as AFL, skips this node. A person with access to the server's machine can read every
# message all the same. With few nodes, "sums" can still identify one: if one of four nodes has 31
# test samples, a worst accuracy of 20/31 is likely to be that node's.
# With "masked", the node only takes part in masked sums, which hide it from that person, too, and
# tells its numbers of samples only as a part of such a sum.
$share

min-batch = 5  # fewest samples in a local step; a step with one sample reveals that sample
min-steps = 1  # fewest local steps in a round
max-steps = 100000  # most local steps in a round; epochs are counted in steps
max-parameters = 100000000  # of a model
max-groups = 50  # demographic groups in the whole federation
# If this node has fewer samples of a group in a split (train, validation or test), it excludes them
# from that split: the server does not see them, and the model does not learn from them. 1 turns
# this off.
min-cell = 5
# Most tasks of each kind (train, survey, evaluate) to answer; 0 sets no limit.
rounds-per-day = 1000
rounds-in-total = 0

# The splits that each kind of task may read.
train = ["train"]
survey = ["train"]  # a method's questions before training
evaluate = ["train", "val", "test"]

methods = []  # names of allowed methods, such as ["fedavg", "afl"]; [] allows all
losses = []  # names of allowed losses, such as ["cross_entropy"]; [] allows all
codebook = true  # send sums of columns, for a codebook of all nodes together

# Least noise of steps that hide single samples (SampleDP), such as 1.0. Above 0, the node takes no
# other steps, and answers no question or evaluation about its training samples.
min-noise = 0.0

# Who draws the batches. "node": this node, in secret. "server": they follow from the run's seed, so
# results equal a simulation bit for bit; but the server can then compute which samples are in each
# batch, and solve for single rows.
order = "node"

# For masked sums (see docs/how-to/masked-sums.md): the fewest clients in a sum, also by their
# weights; the private key with which this node signs its keys ("" for one it makes itself); and the
# file with the public keys of all owners, a key on each line ("" to recognise the first keys seen).
least = 3
identity-key = ""
trusted-keys = ""

# The file that records every request, one line of JSON each; "" for audit.jsonl in the state-dir.
audit = ""
"""


def policy(secure: bool = False) -> str:
    """The file; with ``secure`` the node shares only masked sums."""
    return Template(_POLICY).substitute(share='share = "masked"' if secure else '# share = "sums"')
