"""The files of a Flower app that ``evenhand flower new`` writes; $names are filled in by
:mod:`evenhand.flower.project.new`."""

from __future__ import annotations

PYPROJECT = """\
[project]
name = "$project"
version = "0.1.0"
description = "A fair model from tables that never leave their owners"
license = { file = "LICENSE" }
dependencies = ["$requirement", "evenhand[flower]"]  # install them on the server and on every node

[tool.flwr.app]
publisher = "$project"
fab-format-version = 1
flwr-version-target = "$flwr"
# Flower sends these to no node; it wants every pattern to match a file.
fab-exclude = ["data/**"]

[tool.flwr.app.components]
serverapp = "$package.server_app:app"
clientapp = "$package.client_app:app"

# Settings of a run. Change them here, or for a single run with -c 'num-rounds=50 out="runs/long"'
[tool.flwr.app.config]
num-rounds = $rounds
clients = $clients  # nodes to wait for before the first round
deadline = 300.0  # seconds to answer; clients that miss it are skipped for that round
quorum = 1.0  # below 1: when this share has answered, the others get 30 s more
# relative to the directory where the SuperLink was started; a run started again with the same
# directory resumes after its last round
out = "runs/$project"
"""

MODEL = '''\
"""The model and the codebook of its inputs, for the server and every node."""

from pathlib import Path

from evenhand.flower import Codebook
from evenhand.models import Linear

CODEBOOK = Codebook.load(Path(__file__).with_name("codebook.toml"))


def make_model() -> Linear:
    """Logistic regression. Any torch module will do."""
    return Linear(CODEBOOK.inputs, CODEBOOK.outputs, init="zero")
'''

COLUMNS_MODEL = '''\
"""The model, and what nodes are asked about their columns, for the server and every node."""

from pathlib import Path

from evenhand.flower import Codebook, Columns
from evenhand.models import Linear

COLUMNS = Columns.load(Path(__file__).with_name("columns.toml"))


def make_model(codebook: Codebook) -> Linear:
    """Logistic regression, for the codebook of all nodes. Any torch module will do."""
    return Linear(codebook.inputs, codebook.outputs, init="zero")
'''

ABOUT_CODEBOOK = "the label, the features and the groups to compare"
ABOUT_COLUMNS = (
    "the label, the groups to compare and columns to drop; means, spreads and categories come from"
    " all nodes, as sums"
)

CLIENT_APP = '''\
"""The client side: trains on the node's rows and sends what the method needs, never a row."""

from collections.abc import Mapping
from typing import Any

from evenhand import Federation
from evenhand.flower import client_app

from $package.model import CODEBOOK, make_model


def load_data(config: Mapping[str, Any]) -> Federation:
    """Load the node's rows. Its owner names the file: --node-config 'data="/path/to/table.csv"'."""
    return CODEBOOK.federation(config["data"])


# What the server may see about this node: "sums" (nothing about it alone; methods that need more
# skip it), "method" (what the method reads client by client) or "client" (also its scores). The
# owner has the last word with share="..." in the --node-config.
app = client_app(make_model, load_data, share="method")
'''

COLUMNS_CLIENT_APP = '''\
"""The client side: trains on the node's rows and sends what the method needs, never a row."""

from collections.abc import Mapping
from typing import Any

from evenhand.flower import client_app

from $package.model import COLUMNS, make_model


def load_table(config: Mapping[str, Any]) -> str:
    """Find the node's table; its owner names it: --node-config 'data="/path/to/table.csv"'."""
    return str(config["data"])


# What the server may see about this node: "sums" (nothing about it alone; methods that need more
# skip it), "method" (what the method reads client by client) or "client" (also its scores). The
# owner has the last word with share="..." in the --node-config.
app = client_app(make_model, load_table, columns=COLUMNS, share="method")
'''

SERVER_APP = '''\
"""The server side: runs the rounds of a fair method. It never sees a row."""

import evenhand as eh
from evenhand.flower import server_app
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from $package.model import $columns_import

# What nodes may claim. By default nobody counts for more than five times the median:
# names=("north",), nodes={"north": "keys/north.pub"}, groups=("female",), samples={"north": 5000}
ADMISSION = eh.flower.Admission()
METHOD = $method  # `evenhand algorithms` describes all methods
LOCAL = $local  # local training
$secure_constant
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config

    def finished(result: eh.Result) -> None:
        print(result.scores.query("by != 'client'").dropna(axis=1).to_string(index=False))

    run = server_app(
        METHOD,
        make_model,
        clients=int(settings["clients"]),
        rounds=int(settings["num-rounds"]),
        deadline=float(settings["deadline"]),
        quorum=float(settings["quorum"]),
        admission=ADMISSION,
        eval_every=$eval_every,  # $about_evaluation
        local=LOCAL,
$columns$secure        out=str(settings["out"]),
        finished=finished,
    )
    run(grid, context)
'''

README = """\
# $project

A Flower app that trains one model with evenhand's `$method` on $clients tables. The tables never
leave their owners.

| file | |
| --- | --- |
| `$package/$columns_file` | $about_columns |
| `$package/model.py` | the model |
| `$package/client_app.py` | how a node loads its table and trains |
| `$package/server_app.py` | the method and its settings |
| `pyproject.toml` | rounds, nodes, and where results go |
| `policy.toml` | for the owner of a node: what the server may ask of it |

## Try it on this machine

This needs evenhand with its extra `flower`; from a clone of evenhand, `pip install ".[flower]"`.

```bash
$up
```

It starts a SuperLink and $clients SuperNodes as real processes with TLS and node keys. It
trains, shows the server's log, and stops everything. $about_data

Afterwards `runs/$project` has the model, the history and the scores. Write a report about them (it
needs plotly: `pip install plotly`). It also says what the server learned about single clients:

```bash
evenhand report runs/$project
```

A run with the same directory resumes after its last round. Give a run with other settings or tables
its own directory:

```bash
$up -c 'num-rounds=20 out="runs/second"'
```

## With real nodes

`evenhand flower deploy .` writes container files for the server and the nodes. Without containers,
install evenhand with its extra `flower` on the server and at every node, set
`FLWR_TELEMETRY_ENABLED=0` and `FLWR_DISABLE_UPDATE_CHECK=1` for every Flower process, and take
these steps:

1. Start the SuperLink on the server. It needs a certificate for the name by which nodes reach it
   and for 127.0.0.1, which its own processes use. evenhand's docs/how-to/federation-security.md
   shows how to make one, and how to keep strangers from starting runs. Do both before you use real
   data.

   ```bash
   flower-superlink --host 0.0.0.0 --port 8000 --database link.db --enable-supernode-auth \\
       --disable-runtime-dependency-installation \\
       --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key
   ```

2. Tell Flower's commands on the server where the SuperLink is, in `~/.flwr/config.toml`:

   ```toml
   [superlink.my-link]
   address = "link.example.org:8000"
   root-certificates = "/path/to/ca.crt"
   ```

3. At each node, make a key and send its public half to the server:

   ```bash
   ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f node-key
   ```

   On the server, register it:

   ```bash
   flwr supernode register node-key.pub my-link
   ```

4. At each node, copy `policy.toml` and let the owner adapt it. Start the node with this policy, a
   name that no other node has, a directory that only this node uses, and the path of its table.
   Absolute paths are best:

   ```bash
   flower-supernode --superlink link.example.org:8000 --root-certificates ca.crt \\
       --auth-supernode-private-key node-key \\
       --node-config 'name="north" state-dir="state" policy="policy.toml" data="table.csv"'
   ```

5. Start the run on the server:

   ```bash
   flwr run . my-link --stream
   ```

Tables need the columns that `$columns_file` names. They are not sent with the app: Flower sends
.py, .toml, .md, .yaml and .json files, never .csv, and nothing in `data`. Keep private keys out of
this directory all the same.
$about_secure"""

DATA_README = """\
# Tables for a try-out

One .csv file for each node, for `evenhand flower up`. Use made-up rows. Flower sends nothing in
this directory to the nodes, because `fab-exclude` in pyproject.toml names it. If you remove the
directory, remove that line too.
"""

# 0BSD: users may do what they like with these files, and put their own licence here
LICENSE = """\
Permission to use, copy, modify, and/or distribute this software for any
purpose with or without fee is hereby granted.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES
WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF
MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR
ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES
WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN
ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF
OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
"""
