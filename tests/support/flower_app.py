"""A Flower app on disk, from the texts of its two sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROJECT = """
[project]
name = "{name}"
version = "0.1.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "{name}.server_app:app"
clientapp = "{name}.client_app:app"

[tool.flwr.app.config]
{settings}
"""


def write_app(
    directory: Path, name: str, client: str, server: str, settings: Mapping[str, str]
) -> Path:
    """Write the app ``name`` into ``directory``; ``settings``: the run's, with their default values
    as TOML."""
    lines = "\n".join(f"{key} = {value}" for key, value in settings.items())
    (directory / name).mkdir(parents=True)
    (directory / "pyproject.toml").write_text(PROJECT.format(name=name, settings=lines))
    for module, text in {"__init__": "", "client_app": client, "server_app": server}.items():
        (directory / name / f"{module}.py").write_text(text)
    return directory
