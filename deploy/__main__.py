"""Writes every file that is generated: ``make deploy``."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana_dashboard import dashboard
from deploy.prometheus_rules import rules

HERE = Path(__file__).parent
FILES = {
    HERE / "prometheus" / "quiver-rules.yml": rules,
    HERE / "grafana" / "quiver.json": dashboard,
}


def main() -> None:
    for path, make in FILES.items():
        path.write_text(make())


if __name__ == "__main__":
    main()
