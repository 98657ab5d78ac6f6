"""Writes the files that deploy a Flower app with containers: ``deploy/`` beside the app."""

from __future__ import annotations

import re
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from evenhand.errors import SpecError

KIT = Path(__file__).with_name("kit")
FOLDER = "deploy"
# names in the kit that would be hidden, or mean something, in this repository
NAMES = {
    "dockerignore": ".dockerignore",
    "gitignore": ".gitignore",
    "env.example": ".env.example",
    "wheels.md": "wheels/README.md",
}
DOCKER_NAMES = (
    "\n    resolver 127.0.0.11 valid=10s ipv6=off; # Docker's own; the address may change\n"
)
EXCLUDE = f'fab-exclude = ["{FOLDER}/**"]'
# of an app that `evenhand flower new` wrote
NEW_EXCLUDE = 'fab-exclude = ["data/**"]'
NEW_README = "`evenhand flower deploy .` writes container files for the server and the nodes."


# with masked sums, what the kit says besides: the node's key is its identity key, too
MASKED = {
    "extras": "flower,privacy",
    "compose_keys": """
        identity-key="/etc/evenhand/keys/node-key"
        trusted-keys="/etc/evenhand/trusted.pub\"""",
    "compose_trusted": """
      - ${TRUSTED:?set TRUSTED in .env}:/etc/evenhand/trusted.pub:ro""",
    "pod_keys": """
              identity-key="/etc/evenhand/keys/node-key"
              trusted-keys="/etc/evenhand/policy/trusted.pub\"""",
    "env_trusted": """\
# The public keys of all owners, one on each line, as they sent them to each other.
TRUSTED=/srv/evenhand/trusted.pub
""",
    "also_trusted": " `TRUSTED`\n   comes with step 3.",
    "and_exchanged": ", and the owners have exchanged keys (below)",
    "pod_trusted": " --from-file=trusted.pub",
    "masked": """\
## Masked sums

The node's key is its identity key, too: with it the node signs its keys for masked sums. The server
could invent nodes, so owners exchange public keys without it:

1. Send `north.pub` to all other owners, too, not through the server, and compare fingerprints by
   telephone: `ssh-keygen -l -f north.pub`.
2. Put all owners' keys into one file, your own included, and name it as `TRUSTED` in `.env`:

   ```sh
   cat *.pub > trusted.pub
   ```

3. When an owner makes a new key, all owners replace it in their files, and that node takes part
   under a new `NODE_NAME`: nodes that know the old name refuse another key for it.

The volume `state` has `masks.json`, with the node's secrets and what it has answered. Never restore
it from a copy: a node that answers twice gives its reply away.

""",
}


class _Kit(Template):
    """@{name} is filled in; $ belongs to Compose, Kubernetes and nginx."""

    delimiter = "@"


def write_deployment(app: Path) -> Path:
    """Write ``deploy/`` into the directory of a Flower app, and keep it out of the app's bundle.

    Returns the new folder. It must not exist yet.
    """
    settings, project = _read_project(app)
    folder = app / FOLDER
    if folder.exists():
        raise SpecError(f"{folder} exists already; move it away to write a new one")
    for name, text in deployment(project, _is_masked(app)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    file = app / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    if "fab-exclude" not in settings["tool"]["flwr"]["app"]:
        header = re.compile(r"^\[tool\.flwr\.app\][ \t]*(#.*)?$", re.MULTILINE)
        text = header.sub(lambda line: f"{line[0]}\n{EXCLUDE}", text)
    text = text.replace(NEW_EXCLUDE, f'fab-exclude = ["data/**", "{FOLDER}/**"]')
    file.write_text(text, encoding="utf-8")
    readme = app / "README.md"
    if readme.is_file():
        words = readme.read_text(encoding="utf-8")
        steps = f"[{FOLDER}/README.md]({FOLDER}/README.md) has every step with containers."
        if NEW_README in words:
            readme.write_text(words.replace(NEW_README, steps), encoding="utf-8")
    return folder


def deployment(project: str, masked: bool = False) -> dict[str, str]:
    """The files of ``deploy/`` by their paths; ``masked`` for an app with masked sums."""
    ours, flwr = version("evenhand"), version("flwr")
    nginx = (KIT / "nginx.conf").read_text(encoding="utf-8")
    in_a_pod = _Kit(nginx).substitute(resolver="", upstream="127.0.0.1:8001")
    values = {
        "project": project,
        "evenhand": ours,
        "tag": ours.replace("+", "-"),  # an image's tag cannot have a plus sign
        "flwr": flwr,
        "tried": "1.41",  # the version that the README speaks of, whatever is installed
        "torch": version("torch").partition("+")[0],
        "resolver": DOCKER_NAMES,
        "upstream": "superlink:8001",
        "nginx": textwrap.indent(in_a_pod, "    ").rstrip(),
        **(MASKED if masked else dict.fromkeys(MASKED, "") | {"extras": "flower"}),
    }
    files = sorted(path for path in KIT.rglob("*") if path.is_file())
    return {
        NAMES.get(path.name, path.relative_to(KIT).as_posix()): _Kit(
            path.read_text(encoding="utf-8")
        ).substitute(values)
        for path in files
    }


def _is_masked(app: Path) -> bool:
    """Whether the policy beside an app shares only masked sums, as ``flower new --secure`` says."""
    try:
        found = tomllib.loads((app / "policy.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return found.get("share") == "masked"


def _read_project(app: Path) -> tuple[dict[str, Any], str]:
    """An app's pyproject.toml, and its name as containers and namespaces can have it."""
    file = app / "pyproject.toml"
    if not file.is_file():
        raise SpecError(f"{app} is not a Flower app: it has no pyproject.toml")
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
        settings["tool"]["flwr"]["app"]["components"]
        name = str(settings["project"]["name"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise SpecError(f"{file} does not describe a Flower app: {error}") from error
    return settings, re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "federation"
