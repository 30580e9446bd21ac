# SPDX-License-Identifier: Apache-2.0
"""A part of a Kubernetes API server, enough for kubectl to create, get, patch, delete and show logs.

    with kube_api.Server(directory) as server:         # server.config: a kubeconfig
        subprocess.run(["kubectl", "create", "-f", "-"], env={"KUBECONFIG": server.config, …})
        server.objects["jobs"]["digits-k3v9x"]["status"] = {…}   # what a controller would say

It stores the objects that it gets, and nothing happens by itself. The test is controller, scheduler and kubelet.
"""
import datetime
import http.server
import json
import os
import threading
import urllib.parse
import uuid

NAMESPACE = "vision"
RESOURCES = {"services": ("v1", "Service"), "pods": ("v1", "Pod"), "jobs": ("batch/v1", "Job")}


def _merge(old, patch):
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            _merge(old[key], value)
        else:
            old[key] = value


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, body, status=200, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except BrokenPipeError:  # the client has closed the connection
            pass

    def _refuse(self, status, reason, message):
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
                      "message": message, "code": status}, status)

    def _log(self, name, query):
        """Answers with the pod's lines so far. The answer then ends, even if the caller wants to follow."""
        since = query.get("sinceTime")
        since = datetime.datetime.fromisoformat(since.replace("Z", "+00:00")) if since else None
        stamps = query.get("timestamps") == "true"
        return "".join((f"{at.strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z " if stamps else "") + line
                       for at, line in self.server.logs.get(name, []) if since is None or at >= since)

    def _handle(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        parts = url.path.strip("/").split("/")
        fixed = {"/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
                 "/api": {"kind": "APIVersions", "versions": ["v1"]},
                 "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{
                     "name": "batch", "versions": [{"groupVersion": "batch/v1", "version": "v1"}],
                     "preferredVersion": {"groupVersion": "batch/v1", "version": "v1"}}]},
                 "/api/v1": self._list_of_resources("v1"), "/apis/batch/v1": self._list_of_resources("batch/v1")}
        if url.path in fixed:
            return self._answer(fixed[url.path])
        if url.path == "/openapi/v2":  # an empty document in protobuf: without a schema kubectl finds nothing wrong
            return self._answer(b"", kind="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        if "namespaces" not in parts:
            return self._refuse(404, "NotFound", "the server could not find the requested resource")
        rest = parts[parts.index("namespaces") + 2:]
        if rest[2:] == ["log"]:
            self.server.log_asked.set()
            self.server.logs_answer.wait()
        with self.server.lock:
            if (self.command, rest[0]) in self.server.refused:
                return self._refuse(403, "Forbidden", f"{rest[0]} is forbidden")
            if self.server.is_away:
                return self._refuse(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            return self._on_objects(self.server.objects.get(rest[0], {}), rest, query, body)

    def _list_of_resources(self, version):
        verbs = ["create", "delete", "get", "list", "patch"]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [
            {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
            for name, (of, kind) in RESOURCES.items() if of == version]}

    def _on_objects(self, objects, rest, query, body):
        resource, name = rest[0], rest[1] if len(rest) > 1 else None
        if self.command == "POST":
            made = json.loads(body)
            made["metadata"].update(namespace=NAMESPACE, uid=str(uuid.uuid4()), creationTimestamp="2027-01-15T08:00:00Z")
            if made["metadata"]["name"] in objects:
                return self._refuse(409, "AlreadyExists", f"{resource} already exists")
            objects[made["metadata"]["name"]] = made
            return self._answer(made, 201)
        if name is None:
            wanted = [pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair]
            items = [o for o in objects.values()
                     if all(o["metadata"].get("labels", {}).get(k) == v for k, v in wanted)]
            version, kind = RESOURCES[resource]
            return self._answer({"kind": kind + "List", "apiVersion": version, "metadata": {}, "items": items})
        if name not in objects:
            return self._refuse(404, "NotFound", f'{resource} "{name}" not found')
        if rest[2:] == ["log"]:
            return self._answer(self._log(name, query).encode(), kind="text/plain")
        if self.command == "PATCH":
            _merge(objects[name], json.loads(body))
        elif self.command == "DELETE":
            del objects[name]
            return self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        return self._answer(objects[name])

    do_GET = do_POST = do_PATCH = do_DELETE = _handle


class Server:
    def __init__(self, directory):
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.lock = threading.Lock()
        self.objects = self._server.objects = {name: {} for name in RESOURCES}
        self._server.logs = {}
        self._server.refused = self.refused = set()  # the requests that are refused: ("POST", "jobs"), …
        self._server.is_away = False
        self.log_asked = self._server.log_asked = threading.Event()
        self.logs_answer = self._server.logs_answer = threading.Event()  # cleared: a request for a log waits
        self.logs_answer.set()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.config = self._write_config(directory, "kubeconfig", "test")
        # This file has the context "test", too.
        self.config_elsewhere = self._write_config(directory, "kubeconfig-elsewhere", "elsewhere")

    def _write_config(self, directory, name, context):
        path = os.path.join(directory, name)
        servers = {"test": f"http://127.0.0.1:{self._server.server_port}", "elsewhere": "http://127.0.0.1:1"}
        with open(path, "w") as f:
            json.dump({"apiVersion": "v1", "kind": "Config", "current-context": context, "users": [],
                       "clusters": [{"name": each, "cluster": {"server": server}} for each, server in servers.items()],
                       "contexts": [{"name": each, "context": {"cluster": each, "namespace": NAMESPACE}}
                                    for each in servers]}, f)
        return path

    def add_pod(self, job, index, text, **status):
        """Makes a pod of the Job `job`, as its controller and a kubelet would."""
        name = f"{job}-{index}"
        labels = self.objects["jobs"][job]["spec"]["template"]["metadata"]["labels"]
        self.objects["pods"][name] = {
            "kind": "Pod", "apiVersion": "v1", "status": status,
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "uid": name},
            "spec": {"nodeName": f"host{index}", "containers": [{"name": "ddprun", "image": "i"}]}}
        self.say(name, text)

    def say(self, pod, text):
        now = datetime.datetime.now(datetime.timezone.utc)
        self._server.logs.setdefault(pod, []).extend((now, line) for line in text.splitlines(keepends=True))

    def be_away(self, is_away):
        """If `is_away`, the server answers every request about objects with 503."""
        with self._server.lock:
            self._server.is_away = is_away

    def stop(self):
        """Ends the server: its port has no listener any more."""
        self.logs_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def close(self):
        if self._thread.is_alive():
            self.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
