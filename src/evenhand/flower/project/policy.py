"""The policy file that ``evenhand flower new`` writes for the owners of nodes."""

from __future__ import annotations

POLICY = """\
# For the owner of a node: what a server may ask of it. It has no effect here; copy it to the node,
# change what you like, and start the node with
#   flower-supernode ... --node-config 'policy="/etc/evenhand/policy.toml" ...'
# A task that asks for more is refused on the node, and the server's log names the rule. Without a
# file the values below hold, but for rounds-per-day (no limit) and order, which is "server".

# What the server may see of this node by itself: "sums" (nothing), "method" (what the method looks
# at) or "client" (also its scores). Whoever runs the server sees each node's message all the same.
# share = "sums"

min-batch = 5  # least samples in a local step; the step of a single sample is that sample
min-steps = 1  # least local steps in a round
max-steps = 100000  # most local steps in a round, epochs counted in steps
max-parameters = 100000000  # of a model
max-groups = 50  # groups of people in the whole federation
# A group with fewer samples at this node, in the training, validation or test data, is left out of
# them: the server is not told of it, and nothing is learned from it. 1 turns this off.
min-cell = 5
# Tasks of each kind (train, survey, evaluate) that are answered; 0 sets no limit.
rounds-per-day = 1000
rounds-in-total = 0

# Parts of the data that each kind of task may read.
train = ["train"]
survey = ["train"]  # a method's questions before training
evaluate = ["train", "val", "test"]

methods = []  # names of methods that are allowed, such as ["fedavg", "afl"]; [] allows all
losses = []  # names of losses that are allowed, such as ["cross_entropy"]; [] allows all
codebook = true  # tell sums of columns, for a codebook of all nodes together

# Who draws the batches. "node": this node, in secret. "server": they follow from the run's seed, as
# in a simulation, to the bit; the server can then compute which samples are in each batch, and
# solve for single rows.
order = "node"

# Every request is written down, one line of JSON each; "" for audit.jsonl in the state-dir.
audit = ""
"""
