# SPDX-License-Identifier: Apache-2.0
"""Reads configs/grafana/ddprun.json: its panels, their queries to Prometheus, and the queries' metrics."""
import json
import os
import re

import harness

PATH = os.path.join(harness.SOURCE, "configs/grafana/ddprun.json")
GRAFANAS_OWN = {"$__rate_interval": "1m", "$__range": "1h"}


class Dashboard:
    def __init__(self):
        with open(PATH, encoding="utf-8") as file:
            self.all = json.load(file)
        self.panels = self.all["panels"]
        self.variables = {each["name"]: each for each in self.all["templating"]["list"]}

    def expressions(self, variable=""):
        """Returns (title, PromQL) of each query, with variables filled in. `variable`: only queries that have it."""
        return [(panel["title"], self.filled(target["expr"])) for panel in self.panels
                for target in panel.get("targets", []) if variable in target["expr"]]

    def filled(self, expression):
        for name, value in GRAFANAS_OWN.items():
            expression = expression.replace(name, value)
        return re.sub(r"\$(\w+)", lambda found: ".+" if found.group(1) in self.variables else found.group(0), expression)

    def problems(self):
        """Returns the mistakes because of which Grafana would show something wrongly, or not at all."""
        found, ids, taken = [], [panel["id"] for panel in self.panels], set()
        if len(set(ids)) < len(ids):
            found.append("two panels have one id")
        for panel in self.panels:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            if cells & taken or at["x"] + at["w"] > 24:
                found.append(f"{panel['title']}: lies over another one, or outside")
            taken |= cells
            sources = [panel["datasource"]] if panel["type"] != "row" else []
            sources += [target["datasource"] for target in panel.get("targets", [])]
            if any(source != {"type": "prometheus", "uid": "${datasource}"} for source in sources):
                found.append(f"{panel['title']}: has a data source of its own")
        found += [f"{title}: {expression} has a variable that there is not"
                  for title, expression in self.expressions() if "$" in expression]
        return found


def names_in(expression):
    """Returns the metrics of a PromQL expression."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\bby \([^)]*\)', "", expression)
    return set(re.findall(r"\b(?:ddprun|process)_\w+", bare))


def names_on(page):
    """Returns the metrics of a page in text format."""
    return {re.match(r"\w+", line).group() for line in page.splitlines() if line and not line.startswith("#")}
