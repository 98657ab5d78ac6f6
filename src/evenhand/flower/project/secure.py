"""The files of a Flower app with masked sums, where they differ from those of
:mod:`evenhand.flower.project.templates`; $names are filled in by
:mod:`evenhand.flower.project.new`."""

from __future__ import annotations

MODEL = '''\
"""The model and the codebook of its inputs, for the server and every node.

Imports are inside the functions: a message that only opens masks needs neither, and a node then
answers without loading torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenhand.flower import Codebook
    from evenhand.models import Linear


def codebook() -> Codebook:
    """Which columns are the inputs, the label and the groups."""
    from evenhand.flower import Codebook

    return Codebook.load(Path(__file__).with_name("codebook.toml"))


def make_model() -> Linear:
    """Logistic regression. Any torch module will do."""
    from evenhand.models import Linear

    book = codebook()
    return Linear(book.inputs, book.outputs, init="zero")
'''

CLIENT_APP = '''\
"""The client side: trains on the node's rows and sends masked sums, never a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evenhand.flower import client_app

from $package.model import codebook, make_model

if TYPE_CHECKING:
    from evenhand import Federation


def load_data(config: Mapping[str, Any]) -> Federation:
    """Load the node's rows. Its owner names the file: --node-config 'data="/path/to/table.csv"'."""
    return codebook().federation(config["data"])


# "masked": the node refuses every task whose reply the server could read. The owner has the last
# word with share="..." in the --node-config or in policy.toml.
app = client_app(make_model, load_data, share="masked")
'''

SERVER_SETTINGS = """\
        secure=SECURE,
        weights="uniform",  # so that no client is most of the sum
"""

SERVER_CONSTANT = """\
# The server learns sums over clients. More than two thirds of them must answer; a sum is refused if
# it is that of fewer than `least` clients, also by their weights. mode="strict" needs one message
# less, and everybody's answer.
SECURE = eh.flower.SecureSums(threshold=2 / 3, least=3, mode="recover")
"""

README = """\

## Masked sums

The server learns the sum of what the nodes send in a round, and not what a single node sent. This
has not been audited by a cryptographer. It still sees who takes part, every node's name, the names
of its groups, and the sums themselves, also of the nodes' numbers of samples. A server that lies
about keys from the very start is only noticed if the owners have exchanged their keys without it.
So, before the first run:

1. Each owner makes an identity key. It can be the node's key for the SuperLink, or one of its own:

   ```bash
   ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f identity
   ```

2. The owners send each other `identity.pub`, not through the server, and compare fingerprints by
   telephone (`ssh-keygen -l -f identity.pub`; a node prints its own when it registers).
3. Each owner puts all public keys into one file, a key on each line, and names both files and the
   smallest number of clients in `policy.toml`:

   ```toml
   share = "masked"
   least = 3
   identity-key = "/etc/evenhand/identity"
   trusted-keys = "/etc/evenhand/trusted.pub"
   ```

`evenhand flower up` does this for a try-out. Keep `state-dir` on a disk that lasts, and never
restore it from a copy: a node must not answer twice. evenhand's docs/how-to/masked-sums.md has the
rules that a node enforces.
"""
