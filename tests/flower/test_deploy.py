"""Container files: valid, with options that Flower has, and closed to strangers."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'evenhand[flower]'")
pytest.importorskip("yaml")

import yaml

from evenhand.flower.deploy import health, keys
from evenhand.flower.deploy.write import EXCLUDE, KIT, NEW_EXCLUDE, deployment
from evenhand.flower.tryout.certificates import write_certificates
from evenhand.flower.tryout.processes import QUIET_FLOWER
from tests.support.containers import command_lines, documents, nginx_config, services

FILES = deployment("trial")
COMPOSE = ("compose.yaml", "compose.node.yaml")
MANIFESTS = [name for name in FILES if name.startswith("kubernetes/")]
SCRIPTS = Path(sys.executable).parent
INSTRUCTIONS = {"FROM", "ARG", "COPY", "RUN", "ENV", "WORKDIR", "USER", "EXPOSE", "CMD"}


# The files


def test_every_name_is_filled_in_and_nothing_of_this_machine_is() -> None:
    assert len(FILES) == len([path for path in KIT.rglob("*") if path.is_file()])
    for name, text in FILES.items():
        assert "@{" not in text, name
        assert str(Path.home()) not in text, name
        assert "PRIVATE KEY" not in text, name


def test_compose_files_follow_the_specification(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    broken = FILES["compose.yaml"].replace("read_only: true", "read_only: [no]")
    for name, text, status in (*((n, FILES[n], 0) for n in COMPOSE), ("broken.yaml", broken, 1)):
        (tmp_path / name).write_text(text)
        schema = ["--builtin-schema", "vendor.compose-spec", str(tmp_path / name)]
        done = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", *schema], capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_kubernetes_schemas(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in documents(FILES[name]):
        validator.validate(document, "1.31", strict=True)
        wrong = document | {"spcs": {}}
        with pytest.raises(validator.ValidationError):
            validator.validate(wrong, "1.31", strict=True)


def test_the_dockerfile_pins_its_images_and_never_runs_as_root() -> None:
    text = re.sub(r"\\\n\s*", "", FILES["Dockerfile"])
    lines = [line.split(None, 1) for line in text.splitlines() if line and line[0] != "#"]
    assert {word for word, _ in lines} <= INSTRUCTIONS
    stages: dict[str, list[list[str]]] = {}
    for word, rest in lines:
        if word == "FROM":
            base, _, stage = rest.split()
            assert base in stages or re.fullmatch(r"python:3\.11-[a-z-]+", base)
            stages[stage] = list(stages.get(base, []))
        stages[stage].append([word, rest])
    assert {"server", "node"} <= stages.keys()
    for stage in ("server", "node"):
        assert [rest for word, rest in stages[stage] if word == "USER"][-1] == "10001:10001"
    copied = {rest.split()[0] for word, rest in lines if word == "COPY" and "--from" not in rest}
    allowed = {
        line[1:].split("/")[0] for line in FILES[".dockerignore"].splitlines() if "!" in line
    }
    assert copied == allowed - {"Dockerfile"}
    assert FILES[".dockerignore"].splitlines()[1] == "*"


def test_the_images_have_the_versions_of_this_environment() -> None:
    from importlib.metadata import version

    required = [line for line in FILES["requirements.txt"].splitlines() if line[0] != "#"]
    assert required == [
        f"flwr=={version('flwr')}",
        f"torch=={version('torch').partition('+')[0]}",
    ]
    for name, value in QUIET_FLOWER.items():
        assert f"{name}={value}" in FILES["Dockerfile"]


def test_evenhand_comes_from_its_wheel_and_never_from_an_index(tmp_path: Path) -> None:
    from importlib.metadata import version

    text = re.sub(r"\\\n\s*", "", FILES["Dockerfile"])
    (line,) = re.findall(r"^RUN (python -m venv .*)$", text, re.MULTILINE)
    line = line.replace("python -m venv /opt/venv", "true").replace("/build", str(tmp_path))
    line = line.replace("/opt/venv/bin/pip", "echo")
    (tmp_path / "wheels").mkdir()

    def build() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", line], capture_output=True, text=True)

    (tmp_path / "wheels" / "evenhand-0.0.0-py3-none-any.whl").touch()  # of another version
    assert (build().returncode != 0, build().stdout) == (True, "")
    wheel = tmp_path / "wheels" / f"evenhand-{version('evenhand')}-py3-none-any.whl"
    wheel.touch()
    done = build()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == f"{wheel}[flower]"
    assert "--find-links" not in line


# What containers may do


@pytest.mark.parametrize("name", COMPOSE)
def test_services_are_locked_down(name: str) -> None:
    for service, spec in services(FILES[name]).items():
        assert spec["read_only"] is True, service
        assert spec["cap_drop"] == ["ALL"], service
        assert spec["security_opt"] == ["no-new-privileges:true"], service
        assert "privileged" not in spec
        assert re.search(r":\d", spec["image"]), "a version, never latest"
        if "profiles" not in spec:
            assert spec["restart"] in ("always", "unless-stopped"), service
            assert spec["healthcheck"]["test"][0] == "CMD", service


def test_only_nginx_has_a_port() -> None:
    server, node = (services(FILES[name]) for name in COMPOSE)
    assert [name for name, spec in (server | node).items() if "ports" in spec] == ["guard"]
    assert server["superlink"]["networks"] == ["inside"]
    networks = yaml.safe_load(FILES["compose.yaml"])["networks"]
    assert networks["inside"]["internal"] is True


def test_a_node_reads_its_data_and_writes_only_its_state() -> None:
    mounts = services(FILES["compose.node.yaml"])["supernode"]["volumes"]
    assert [mount for mount in mounts if not mount.endswith(":ro")] == ["state:/var/lib/evenhand"]


def test_pods_are_locked_down() -> None:
    for name in MANIFESTS:
        for document in documents(FILES[name]):
            if document["kind"] == "Secret":
                assert set(document["stringData"].values()) == {""}
                assert name.endswith(".template")  # kubectl apply -f skips it
            if document["kind"] != "StatefulSet":
                continue
            pod = document["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert pod["securityContext"]["runAsNonRoot"] is True
            for container in pod["containers"]:
                rights = container["securityContext"]
                assert rights["readOnlyRootFilesystem"] is True
                assert rights["allowPrivilegeEscalation"] is False
                assert rights["capabilities"] == {"drop": ["ALL"]}
                for mount in container["volumeMounts"]:
                    written = mount["mountPath"] in ("/tmp", "/var/lib/evenhand")
                    assert mount.get("readOnly", False) is not written, mount


def test_nothing_of_the_cluster_reaches_the_superlink_itself() -> None:
    pod = next(documents(FILES["kubernetes/server/30-superlink.yaml"]))["spec"]["template"]["spec"]
    link, guard = pod["containers"]
    assert "--host=127.0.0.1" in link["args"]
    assert "ports" not in link
    assert [port["containerPort"] for port in guard["ports"]] == [8000]
    policy = next(documents(FILES["kubernetes/server/50-network.yaml"]))["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8000}]}]
    assert "egress" not in policy


# Commands


def helped(*command: str) -> str:
    done = subprocess.run(
        [str(SCRIPTS / command[0]), *command[1:], "--help"],
        capture_output=True,
        text=True,
        env={**QUIET_FLOWER, "PATH": str(SCRIPTS), "COLUMNS": "200"},
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_flower_has_every_option(program: str) -> None:
    known = {
        option: " ".join(about.split())
        for option, about in re.findall(
            r"^  (--[a-z-]+)\b.*?(?:\s{2,}|\n\s+)((?:.|\n(?=   ))*)", helped(program), re.MULTILINE
        )
    }
    lines = [line for line in command_lines(FILES) if line[0] == program]
    assert len(lines) == 2  # Compose and Kubernetes
    for line in lines:
        options = [word.partition("=")[0] for word in line[1:] if word.startswith("--")]
        assert len(options) >= 6
        for option in options:
            assert option in known, option
            assert "eprecated" not in known[option], option


def test_both_ways_start_flower_with_the_same_options() -> None:
    for program in ("flower-superlink", "flower-supernode"):
        compose, kubernetes = (
            {word.partition("=")[0] for word in line if word.startswith("--")}
            for line in command_lines(FILES)
            if line[0] == program
        )
        assert compose == kubernetes


def test_the_commands_of_the_readme_exist() -> None:
    text = "\n".join(re.findall(r"```sh\n(.*?)```", FILES["README.md"], re.DOTALL))
    called = {
        (*words[:1], *(("supernode", words[1]) if words[0] == "supernode" else ()))
        for words in (
            shlex.split(rest) for rest in re.findall(r"\bflwr (.*?)(?: *#.*)?$", text, re.MULTILINE)
        )
    }
    assert {words[-1] for words in called} == {"run", "register", "list"}
    assert "--stream" in helped("flwr", "run")
    for command in ("register", "list"):
        helped("flwr", "supernode", command)
    used = set(
        re.findall(r"docker compose (?:-f compose\.node\.yaml )?(?:\S+ )*?(\S+)(?= |$)", text)
    )
    assert used
    for service in re.findall(r"run --rm(?: -T)?(?: -v \S+)? (\w+)", text):
        assert service in services(FILES["compose.yaml"]) | services(FILES["compose.node.yaml"])


def test_env_example_has_every_variable() -> None:
    used = {name for file in COMPOSE for name in re.findall(r"(?<!\$)\$\{(\w+)", FILES[file])}
    given = dict(
        line.split("=", 1) for line in FILES[".env.example"].splitlines() if re.match(r"\w", line)
    )
    assert used == given.keys()
    # nobody starts with an example's name: Compose asks for an empty one
    for name in ("LINK_NAME", "LINK", "NODE_NAME"):
        assert given[name] == ""
        assert any(f"${{{name}:?" in FILES[file] for file in COMPOSE)
    node = next(line for line in command_lines(FILES) if line[0] == "flower-supernode")
    assert re.findall(r"([a-z-]+)=", node[-1]) == ["name", "state-dir", "data", "policy"]


def test_nginx_forwards_only_what_nodes_call() -> None:
    for text in (FILES["nginx.conf"], nginx_config(FILES["kubernetes/server/10-nginx.yaml"])):
        places = re.findall(r"location (.*?) \{((?:[^{}]|\{[^{}]*\})*)\}", text)
        (fleet, forwards), (rest, refuses) = places
        assert (fleet, rest) == ("~ ^/v1/fleet/[a-z-]+$", "/")
        assert text.count("proxy_pass") == forwards.count("proxy_pass") == 1
        assert refuses.split() == ["return", "403;"]


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    write_certificates(tmp_path / "tls")
    for i, text in enumerate(
        (FILES["nginx.conf"], nginx_config(FILES["kubernetes/server/10-nginx.yaml"]))
    ):
        file = tmp_path / f"{i}.conf"
        file.write_text(text.replace("/etc/evenhand/tls", f"{tmp_path}/tls"))
        done = subprocess.run(["nginx", "-t", "-c", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


# What runs in the containers


def test_certificates_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "tls"
    first = keys.certificates(place, ("link.example.org",), 365, replace=False)
    assert first.startswith("-----BEGIN CERTIFICATE-----")
    key = (place / "server.key").read_bytes()
    assert keys.certificates(place, ("link.example.org",), 365, replace=False) == first
    assert (place / "server.key").read_bytes() == key
    assert "--replace makes new ones" in capsys.readouterr().err
    assert keys.certificates(place, ("link.example.org",), 365, replace=True) != first
    (place / "server.pem").unlink()
    with pytest.raises(SystemExit, match=r"has no server\.pem; add it, or make all anew"):
        keys.certificates(place, ("link.example.org",), 365, replace=False)


def test_the_entry_points_of_the_tools_make_what_nodes_and_server_need(tmp_path: Path) -> None:
    from cryptography import x509

    server, node = (services(FILES[name]) for name in COMPOSE)
    for spec, arguments in ((server["certificates"], ["link.example.org"]), (node["key"], [])):
        module, *words = spec["entrypoint"][2:]
        words[-1] = f"{tmp_path}{words[-1]}"
        done = subprocess.run(
            [sys.executable, "-m", module, *words, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        (tmp_path / words[0]).write_text(done.stdout)
    assert (tmp_path / "certificates").read_bytes() == (
        tmp_path / "etc/evenhand/tls/ca.crt"
    ).read_bytes()
    assert (tmp_path / "node").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "etc/evenhand/keys/node-key").stat().st_mode & 0o077 == 0
    made = x509.load_pem_x509_certificate((tmp_path / "etc/evenhand/tls/server.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["link.example.org", "localhost", "127.0.0.1"]


@pytest.fixture
def listener(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """Something that speaks TLS, with a certificate for so many days."""
    files = write_certificates(tmp_path / "tls", ("127.0.0.1",), days=request.param)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server, files.key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", files.authority
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("listener", [30], indirect=True)
def test_a_process_that_answers_is_healthy(listener: tuple[str, Path]) -> None:
    address, authority = listener
    assert health.check(address) == ""
    assert health.check(address, authority) == ""


@pytest.mark.parametrize("listener", [0], indirect=True)
def test_an_expired_certificate_is_not_healthy(listener: tuple[str, Path]) -> None:
    address, authority = listener
    assert health.check(address) == ""
    assert "certificate has expired" in health.check(address, authority)


def test_a_port_where_nobody_listens_is_not_healthy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "evenhand.flower.deploy.health", address],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{address} is not healthy: ")


# The command


def test_new_projects_and_old_ones_get_the_files(call: Any) -> None:
    status, out, _ = call("flower", "new", "My app", "--compose")
    assert status == 0
    assert out.endswith("container files written; My app/deploy/README.md has the steps\n")
    assert call("flower", "new", "old-app")[0] == 0
    assert call("flower", "deploy", "old-app")[:2] == (
        0,
        "container files written; old-app/deploy/README.md has the steps\n",
    )
    for app, project in (("My app", "my-app"), ("old-app", "old-app")):
        written = {
            path.relative_to(f"{app}/deploy").as_posix(): path.read_text()
            for path in Path(app, "deploy").rglob("*")
            if path.is_file()
        }
        assert written == deployment(project)
        readme = Path(app, "README.md").read_text()
        assert "[deploy/README.md](deploy/README.md) has every step with containers." in readme
        assert "evenhand flower deploy" not in readme


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NEW_EXCLUDE, 'fab-exclude = ["data/**", "deploy/**"]'),
        ("", EXCLUDE),
        ('fab-exclude = ["policy.toml"]', 'fab-exclude = ["policy.toml"]'),
    ],
)
def test_the_files_stay_out_of_the_bundle_for_nodes(
    call: Any, tmp_path: Path, before: str, after: str
) -> None:
    call("flower", "new", "my-app")
    file = tmp_path / "my-app" / "pyproject.toml"
    assert file.read_text().count(NEW_EXCLUDE) == 1
    file.write_text(file.read_text().replace(NEW_EXCLUDE, before))
    call("flower", "deploy", "my-app")
    assert [line for line in file.read_text().splitlines() if "fab-exclude" in line] == [after]
    built = subprocess.run(
        [str(SCRIPTS / "flwr"), "build", "--app", "my-app"],
        env={**QUIET_FLOWER, "PATH": str(SCRIPTS), "FLWR_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = tmp_path.glob("*.fab")
    names = zipfile.ZipFile(bundle).namelist()
    assert any(name.startswith("deploy/") for name in names) is ("deploy" not in after)
    assert "my_app/server_app.py" in names


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        ({}, "app is not a Flower app: it has no pyproject.toml"),
        ({"pyproject.toml": "[project]\nname='x'"}, "does not describe a Flower app: 'tool'"),
        (
            {
                "pyproject.toml": "[project]\nname='x'\n[tool.flwr.app.components]",
                "deploy/mine": "",
            },
            "app/deploy exists already; move it away to write a new one",
        ),
    ],
)
def test_what_is_no_app_or_has_the_files_is_left_alone(
    call: Any, tmp_path: Path, prepare: dict[str, str], message: str
) -> None:
    for name, text in {"notes": "", **prepare}.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = sorted(map(str, tmp_path.rglob("*")))
    status, _, err = call("flower", "deploy", "app")
    assert status == 1
    assert message in err
    assert err.count("\n") == 1
    assert sorted(map(str, tmp_path.rglob("*"))) == before


# Masked sums


def test_a_node_with_masked_sums_signs_with_its_key_and_trusts_the_owners(tmp_path: Path) -> None:
    masked = deployment("trial", masked=True)
    assert masked.keys() == FILES.keys()
    for line in command_lines(masked):
        if line[0] != "flower-supernode":
            continue
        config = dict(re.findall(r'([a-z-]+)="([^"]*)"', line[-1]))
        assert list(config) == [
            "name",
            "state-dir",
            "data",
            "policy",
            "identity-key",
            "trusted-keys",
        ]
        key = next(it for it in line if it.startswith("--auth-supernode-private-key="))
        assert config["identity-key"] == key.partition("=")[2]
    node = services(masked["compose.node.yaml"])["supernode"]
    assert any(it.endswith(":/etc/evenhand/trusted.pub:ro") for it in node["volumes"])
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", masked["compose.node.yaml"]))
    assert "TRUSTED" in used
    assert all(re.search(rf"^{name}=", masked[".env.example"], re.M) for name in used)
    assert '"${wheel}[flower,privacy]"' in masked["Dockerfile"]
    (pod,) = (it for it in documents(masked["kubernetes/node/30-supernode.yaml"]))
    mounts = pod["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert "/etc/evenhand/policy" in [it["mountPath"] for it in mounts]
    assert "--from-file=../policy.toml --from-file=trusted.pub" in masked["README.md"]
    assert "## Masked sums" in masked["README.md"]
    assert "TRUSTED" not in "".join(FILES.values())


def test_the_key_of_a_node_can_be_its_identity_key(tmp_path: Path) -> None:
    secure = pytest.importorskip("evenhand.secure")
    public = keys.node(tmp_path, replace=False)
    identity = secure.Identity.load(tmp_path / keys.KEY)
    announced = secure.Node(secure.Ledger(), "north", "run", secure.Trust(), identity).announced()
    secure.Trust(public).check(announced)


def test_a_secure_project_gets_files_for_masked_sums(call: Any) -> None:
    assert call("flower", "new", "hidden", "--secure", "--compose")[0] == 0
    written = Path("hidden", "deploy", "compose.node.yaml").read_text()
    assert written == deployment("hidden", masked=True)["compose.node.yaml"]
