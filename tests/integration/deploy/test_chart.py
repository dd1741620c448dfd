"""The Helm chart: that Helm takes it, and that what it renders runs a node as it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import quiver
from quiver.config import NodeConfig
from tests.integration.deploy.box import USER
from tests.integration.deploy.image import FINAL
from tests.integration.deploy.variables import loaded, stop_seconds_max
from tests.paths import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "quiver"
VERSION = "1.30.0"
"""Of Kubernetes. A helm that was built from its module assumes a very old one."""
Manifest = dict[str, Any]
ALONE = {"replicas": 1, "etcd": {"enabled": False}}
FULL = {
    "admins": "ops.example",
    "tls": {"secret": "node-tls", "clients": True, "clientsRequired": True},
    "etcd": {"enabled": False},
    "metadata": {
        "endpoints": "https://etcd-a:2379,https://etcd-b:2379",
        "username": "quiver",
        "passwordSecret": "etcd-user",
        "tlsSecret": "etcd-tls",
        "clientCertificate": True,
    },
    "settings": {"limits.connections_max": 20000, "limits.drain_timeout_s": 5, "role": "broker"},
    "config": '[alerts.rules.old]\nwatch = "oldest_age"\nlimit = "5m"\n',
    "webhookSecret": "hooks",
    "keySecret": "cluster-key",
    "zone": {"value": "rack-1"},
    "antiAffinity": "preferred",
    "serviceMonitor": {"enabled": True, "tokenSecret": "prometheus"},
}
VALUES = {"defaults": {}, "alone": ALONE, "full": FULL}


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == quiver.__version__


def test_every_value_has_its_schema_and_no_other_is_allowed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False
    _require_described(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


def _require_described(values: dict[str, Any], schema: dict[str, Any]) -> None:
    if "properties" in schema:
        assert set(values) <= set(schema["properties"])
        for name, value in values.items():
            one = schema["properties"][name]
            if isinstance(value, dict):
                _require_described(value, one)
                # Helm shares ``global`` with every chart, so others may have values in it.
                is_open = name == "global" or "properties" not in one
                assert is_open or one.get("additionalProperties") is False, name


# ------------------------------------------------------------------ what Helm makes of it


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("helm") or shutil.which("helm", path=str(REPOSITORY / ".venv" / "tools"))
    if tool is None:
        pytest.skip("there is no helm: make chart-tools builds it, with Go 1.24 or newer")
    return subprocess.run(
        [tool, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rendered(folder: Path, values: dict[str, Any], name: str = "mq") -> dict[str, Manifest]:
    """What is installed, by kind and name."""
    given = folder / "values.json"
    given.write_text(json.dumps(values))
    place = ("--namespace", "queues", "--kube-version", VERSION, "--values", str(given))
    done = helm("template", name, str(CHART), *place)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    by_name = {f"{one['kind']} {one['metadata']['name']}": one for one in found}
    assert len(by_name) == len(found), "no two have the same name"
    return by_name


@pytest.fixture(params=VALUES)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Manifest]:
    return rendered(tmp_path, VALUES[request.param])


def variables(container: Manifest, name: str, labels: dict[str, str]) -> dict[str, str]:
    """As the kubelet sets them: fields of the pod, and earlier variables by name."""
    fields = {"metadata.name": name}
    fields |= {f"metadata.labels['{key}']": value for key, value in labels.items()}
    found: dict[str, str] = {}
    for one in container["env"]:
        assert one["name"] not in found, "a variable is set once"
        path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = fields.get(path, "") if path else one["value"]
        assert isinstance(value, str)
        found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda named: found[named[1]], value)
    return found


def pod_of(manifests: dict[str, Manifest]) -> Manifest:
    pod: Manifest = manifests["StatefulSet mq-quiver"]["spec"]["template"]["spec"]
    return pod


@pytest.mark.process
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_wrong_with_it(values: dict[str, Any], tmp_path: Path) -> None:
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values))
    done = helm("lint", "--strict", "--kube-version", VERSION, "--values", str(given), str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replica": 3}, "replica"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"terminationGracePeriodSeconds": 10}, "terminationGracePeriodSeconds"),
        ({"metadata": {"endpoints": "etcd:2379"}}, "endpoints"),
        ({"etcd": {"enabled": False}}, "more than one replica needs etcd"),
        ({"tls": {"clientsRequired": True}}, "tls.clientsRequired needs tls.secret"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.tokenSecret"),
        ({"metadata": {"username": "quiver"}}, "metadata.passwordSecret"),
        ({"admins": "ops.example"}, "set tls.secret and tls.clients too"),
    ],
)
def test_values_that_cannot_work_are_refused(
    values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values))
    where = ("--kube-version", VERSION, "--values", str(given))
    done = helm("template", "mq", str(CHART), *where)
    assert done.returncode != 0
    assert reason in done.stderr


@pytest.mark.process
def test_every_pod_is_locked_down(installed: dict[str, Manifest]) -> None:
    sets = [one for one in installed.values() if one["kind"] == "StatefulSet"]
    for pod in (one["spec"]["template"]["spec"] for one in sets):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] > 10000
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert re.fullmatch(r".+:v?\d+\.\d+\.\d+", container["image"])


@pytest.mark.process
def test_a_node_starts_with_its_variables_and_has_the_time_to_stop(
    installed: dict[str, Manifest],
) -> None:
    pod = pod_of(installed)
    (container,) = pod["containers"]
    given = variables(container, "mq-quiver-0", {"topology.kubernetes.io/zone": "zone-a"})
    path = given.pop("QUIVER_CONFIG", None)
    config = loaded(given).config
    assert config.name == "mq-quiver-0"
    assert config.advertise == "mq-quiver-0.mq-quiver-nodes.queues.svc.cluster.local:7401"
    assert pod["securityContext"]["runAsUser"] == USER
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + stop_seconds_max(config)
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    sources = {one["name"] for one in pod["volumes"]} | {"data"}
    assert set(mounted.values()) == sources
    files = [path, *(value for value in given.values() if value.startswith("/"))]
    for file in filter(None, files):
        assert any(file.startswith(f"{place}/") or file == place for place in mounted), file
    ports = {one["containerPort"] for one in container["ports"]}
    assert ports == {int(one) for one in FINAL.one("EXPOSE").text.split()}


@pytest.mark.process
def test_services_and_budgets_select_the_pods(installed: dict[str, Manifest]) -> None:
    labels = installed["StatefulSet mq-quiver"]["spec"]["template"]["metadata"]["labels"]
    spec = installed["StatefulSet mq-quiver"]["spec"]
    headless = installed[f"Service {spec['serviceName']}"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    clients = installed["Service mq-quiver"]["spec"]
    assert "publishNotReadyAddresses" not in clients
    selectors = [headless["selector"], clients["selector"], spec["selector"]["matchLabels"]]
    if spec["replicas"] > 1:
        budget = installed["PodDisruptionBudget mq-quiver"]["spec"]
        assert budget["maxUnavailable"] == 1
        # A node that is not ready may hold the last replica in sync.
        assert budget["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"
        selectors.append(budget["selector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= labels.items()
    others = [one for name, one in installed.items() if name == "StatefulSet mq-etcd"]
    for other in others:
        assert (
            not clients["selector"].items()
            <= other["spec"]["template"]["metadata"]["labels"].items()
        )


@pytest.mark.process
def test_the_probes_tell_alive_from_ready(tmp_path: Path) -> None:
    (container,) = pod_of(rendered(tmp_path, {}))["containers"]
    ready, alive, started = (
        container[f"{one}Probe"] for one in ("readiness", "liveness", "startup")
    )
    assert (ready["httpGet"]["path"], started["httpGet"]["path"]) == ("/readyz", "/healthz")
    assert alive["exec"]["command"][-2:] == ["/opt/quiver/probe.py", "healthz"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 60, (
        "a pause is no reason to restart"
    )
    assert started["periodSeconds"] * started["failureThreshold"] >= 600, "logs may be long"
    assert all(one["timeoutSeconds"] == 5 for one in (ready, alive, started))


@pytest.mark.process
def test_where_clients_need_a_certificate_the_probes_show_one(tmp_path: Path) -> None:
    (container,) = pod_of(rendered(tmp_path, FULL))["containers"]
    for one in ("readiness", "liveness", "startup"):
        assert container[f"{one}Probe"]["exec"]["command"][0] == "python"


@pytest.mark.process
@pytest.mark.parametrize(
    ("values", "labels", "zone"),
    [
        ({}, {"topology.kubernetes.io/zone": "eu-1a"}, "eu-1a"),
        ({}, {}, ""),
        ({"zone": {"value": "rack-1"}}, {"topology.kubernetes.io/zone": "eu-1a"}, "rack-1"),
        ({"zone": {"fromLabel": False}}, {"topology.kubernetes.io/zone": "eu-1a"}, ""),
    ],
)
def test_the_zone_is_the_label_of_the_pod_unless_it_is_given(
    values: dict[str, Any], labels: dict[str, str], zone: str, tmp_path: Path
) -> None:
    (container,) = pod_of(rendered(tmp_path, values))["containers"]
    assert loaded(variables(container, "mq-quiver-0", labels)).config.zone == zone


@pytest.mark.process
def test_nodes_find_the_etcd_of_the_chart(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, {})
    (container,) = pod_of(manifests)["containers"]
    endpoints = loaded(variables(container, "mq-quiver-0", {})).config.metadata.endpoints.split(",")
    (etcd,) = manifests["StatefulSet mq-etcd"]["spec"]["template"]["spec"]["containers"]
    members = [variables(etcd, f"mq-etcd-{n}", {}) for n in range(3)]
    assert endpoints == [one["ETCD_ADVERTISE_CLIENT_URLS"] for one in members]
    peers = [f"{one['ETCD_NAME']}={one['ETCD_INITIAL_ADVERTISE_PEER_URLS']}" for one in members]
    assert {one["ETCD_INITIAL_CLUSTER"] for one in members} == {",".join(peers)}


@pytest.mark.process
def test_a_node_alone_needs_no_etcd(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, ALONE)
    (container,) = pod_of(manifests)["containers"]
    config = loaded(variables(container, "mq-quiver-0", {})).config
    assert config.metadata.store == NodeConfig().metadata.store == "sqlite"
    assert not any("etcd" in name or "Budget" in name for name in manifests)


@pytest.mark.process
def test_settings_files_secrets_and_metrics_are_passed_on(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, FULL)
    (container,) = pod_of(manifests)["containers"]
    given = variables(container, "mq-quiver-0", {})
    config = loaded(given).config
    assert (config.limits.connections_max, config.limits.drain_timeout_s) == (20000, 5)
    assert config.security.tls_client_required
    assert config.metadata.password_file == "/etc/quiver/etcd-password/password"
    secrets = {
        one["name"]: one["secret"]["secretName"]
        for one in pod_of(manifests)["volumes"]
        if "secret" in one
    }
    expected = {"tls": "node-tls", "etcd-password": "etcd-user", "etcd-tls": "etcd-tls"}
    assert secrets == {**expected, "webhooks": "hooks", "key": "cluster-key"}
    assert config.security.key_file == "/etc/quiver/key/key"
    assert manifests["ConfigMap mq-quiver-config"]["data"]["quiver.toml"] == FULL["config"]
    (scraped,) = manifests["ServiceMonitor mq-quiver"]["spec"]["endpoints"]
    assert (scraped["scheme"], scraped["path"], scraped["port"]) == ("https", "/metrics", "http")
    assert scraped["authorization"]["credentials"] == {"name": "prometheus", "key": "token"}


@pytest.mark.process
def test_a_changed_settings_file_restarts_the_nodes(tmp_path: Path) -> None:
    first, second = (
        rendered(tmp_path, {"config": text})["StatefulSet mq-quiver"]["spec"]["template"]
        for text in ("[limits]", "[web]")
    )
    assert first["metadata"]["annotations"] != second["metadata"]["annotations"]
    assert first["spec"] == second["spec"]
