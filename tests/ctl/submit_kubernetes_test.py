#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprunctl submit --to kubernetes: checks the manifest by the published schemas, and uses the real kubectl.

The schemas are those of Kubernetes (kubernetes-validate) and of JobSet (the models that Kubeflow Trainer
publishes); kubectl talks to tests/support/kube_api.py. scripts/setup.sh full has all three.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import kube_api  # noqa: E402
import netns  # noqa: E402
import runner  # noqa: E402

CTL = os.path.join(BIN, "ddprunctl")
UNPACKED = os.path.join(SOURCE, ".cache/kubernetes/usr/bin")
PATH = UNPACKED + ":" + os.environ.get("PATH", "")
SECONDS = 60  # limit of each wait, for a machine under load

LEAST = '[to.kubernetes]\nimage = "i:1"\n'
# All keys of the section, so that the schema sees the whole manifest.
MOST = """spares = 1
[environment]
WORDS = "a: $(b) 'c'"
[limits]
time = "1h"
[to.kubernetes]
image = "registry.example.com/ada/train:1.0"
namespace = "vision"
image_pull_policy = "IfNotPresent"
image_pull_secrets = ["registry"]
service_account = "trainer"
priority_class = "batch"
queue = "vision"
cpus = 32
memory = "256Gi"
gpus_per_node = 4
shared_memory = "16Gi"
secrets = ["wandb"]
keep_finished = 60
volumes = {datasets = "/data"}
labels = {team = "vision"}
node_selector = {pool = "a100"}
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = files.scratch(self)
        self.environment = {**os.environ, "PATH": PATH, "HOME": self.directory}

    def run_ctl(self, *arguments):
        return subprocess.run([CTL, *arguments], env=self.environment, cwd=self.directory, text=True, timeout=SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ctl(self, *arguments, code=0):
        done = self.run_ctl(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def job(self, more, nodes="2"):
        return files.write(self.directory, "job.toml",
                           f'name = "digits"\ncommand = ["train", "--epochs=5"]\nnodes = {nodes}\n{more}')


class Manifest(Case):
    def documents(self, more, nodes="2"):
        import yaml
        shown = json.loads(self.ctl("submit", self.job(more, nodes), "--dry-run", "--json"))
        return list(yaml.safe_load_all(shown["text"]))

    def need(self, module):
        try:
            return __import__(module)
        except ImportError:
            self.skipTest(f"no {module} here: scripts/setup.sh full installs it")

    def test_kubernetes_own_schema_knows_all_of_it(self):
        validate = self.need("kubernetes_validate")
        for more, nodes in ((LEAST, "2"), (MOST, '"2:4"')):
            for document in self.documents(more, nodes):
                for version in ("1.33", validate.latest_version()):
                    validate.validate(document, version, strict=True)
        document["spec"]["backoffLimitPerIdnex"] = 1  # the schema refuses names that it doesn't know
        with self.assertRaises(validate.ValidationError):
            validate.validate(document, validate.latest_version(), strict=True)

    def test_jobsets_own_models_know_all_of_it(self):
        self.need("kubeflow_trainer_api")
        validate = self.need("kubernetes_validate")
        from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
        for more, nodes in ((LEAST, "2"), (MOST, '"2:4"')):
            document, = self.documents(more + 'kind = "jobset"\n', nodes)
            self.assertEqual(JobsetV1alpha2JobSet.from_dict(document).to_dict()["spec"], document["spec"])
            template = document["spec"]["replicatedJobs"][0]["template"]
            validate.validate({"apiVersion": "batch/v1", "kind": "Job", **template}, "1.33", strict=True)


class Pods(Case):
    """Two hosts like pods of an Indexed Job: with the names, variables and hosts files that the kubelet gives them."""

    def setUp(self):
        super().setUp()
        try:
            self.hosts = netns.Hosts(2)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.hosts.close)

    def know(self, host, index):
        """From now on `host` can resolve the pod's name."""
        line = f"{self.hosts[index].address} digits-{index}.digits.vision.svc.cluster.local digits-{index}"
        self.hosts[host].run(["sh", "-c", f"echo '{line}' >>/etc/hosts"], timeout=SECONDS, check=True)

    def start_pod(self, index, command):
        dropped = ("DDPRUN_", "PET_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE", "KUBERNETES")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        process = self.hosts[index].popen(
            ["unshare", "--uts", "sh", "-c", f"hostname digits-{index}; exec \"$@\"", "sh", *command], text=True,
            env={**environment, "JOB_COMPLETION_INDEX": str(index), "PATH": f"{BIN}:{environment['PATH']}"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_the_manifests_command_starts_the_job_also_where_dns_knows_the_first_pod_later(self):
        path = files.write(self.directory, "job.toml", 'name = "digits"\nnodes = 2\nworkers_per_node = 2\n'
                           'command = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE"]\n' + LEAST)
        shown = json.loads(self.ctl("submit", path, "--dry-run", "--json"))["text"]
        words = re.search(r"command:\n((?: +- .*\n)+)", shown)[1].strip().splitlines()
        command = [json.loads(word) if word.startswith('"') else word
                   for word in (line.strip()[2:].replace("$$", "$") for line in words)]
        self.know(1, 1)
        late = self.start_pod(1, command)
        said = ""
        while "can't be resolved" not in said:
            line = late.stderr.readline()
            self.assertTrue(line, said)
            said += line
        self.know(1, 0)
        self.know(0, 0)
        first = self.start_pod(0, command)
        outputs = [pod.communicate(timeout=SECONDS) for pod in (first, late)]
        self.assertEqual([first.returncode, late.returncode], [0, 0], outputs)
        for rank in range(4):
            self.assertIn(f"rank {rank} of 4", outputs[rank // 2][0])


@unittest.skipUnless(shutil.which("kubectl", path=PATH), "no kubectl here: scripts/setup.sh full unpacks it")
class Kubectl(Case):
    def setUp(self):
        super().setUp()
        self.server = kube_api.Server(self.directory)
        self.addCleanup(self.server.close)
        self.environment["KUBECONFIG"] = self.server.config

    def submit(self, *flags, more=LEAST):
        job = self.ctl("submit", self.job(more), *flags).strip()
        self.assertRegex(job, r"^kubernetes:vision/digits-\w{5}$")
        return job, job.split("/")[1]

    def status(self, job):
        return json.loads(self.ctl("status", "--json", job))

    def fail_job(self, name, reason="PodFailurePolicy"):
        self.server.objects["jobs"][name]["status"] = {"conditions": [
            {"type": "Failed", "status": "True", "reason": reason, "message": "it failed",
             "lastTransitionTime": "2027-01-15T08:00:09Z"}]}

    def test_a_dry_run_shows_what_is_submitted_and_the_service_belongs_to_the_job(self):
        shown = json.loads(self.ctl("submit", self.job(LEAST), "--dry-run", "--json"))
        self.assertEqual(self.server.objects["jobs"], {}, "a dry run asks nobody")
        _, name = self.submit()
        job, service = self.server.objects["jobs"][name], self.server.objects["services"][name]
        self.assertEqual(service["metadata"]["ownerReferences"],
                         [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}])
        try:
            import yaml
        except ImportError:
            return
        planned = list(yaml.safe_load_all(shown["text"].replace("xxxxx", name.rsplit("-", 1)[1])))
        self.assertEqual([service["spec"], job["spec"]], [each["spec"] for each in planned])

    def test_a_job_is_seen_from_the_queue_to_its_end(self):
        job, name = self.submit()
        self.assertEqual(self.status(job)["phase"], "queued")
        self.server.add_pod(name, 0, "[0] epoch 1\n", phase="Running")
        self.server.add_pod(name, 1, "[1] epoch 1\n", phase="Running")
        state = self.status(job)
        self.assertEqual((state["phase"], state["nodes"]), ("running", ["host0", "host1"]))
        shown = self.ctl("logs", job)
        self.assertIn("[0] epoch 1", shown)
        self.assertIn("[1] epoch 1", shown)
        self.server.objects["jobs"][name]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.assertEqual(self.status(job)["exit_code"], 0)
        listed = json.loads(self.ctl("jobs", "--to", "kubernetes", "--json"))["jobs"]
        self.assertEqual([each["id"] for each in listed], [job])

    def start(self, *arguments, stdout=subprocess.PIPE):
        process = subprocess.Popen([CTL, *arguments], env=self.environment, cwd=self.directory, text=True,
                                   start_new_session=True, stdout=stdout, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def submit_and_wait(self, more=LEAST, **options):
        waiting = self.start("submit", self.job(more), "--wait", **options)
        job = waiting.stderr.readline().split()[-1]  # "ddprunctl: submitted kubernetes:…"
        return waiting, job, job.split("/")[-1]

    def test_wait_shows_each_line_once_and_ends_with_the_code_of_the_pod_that_failed(self):
        """The commands use the context in the job's name. They ask again if the server is away for a moment."""
        self.environment["KUBECONFIG"] = self.server.config_elsewhere
        waiting, job, name = self.submit_and_wait(LEAST + 'context = "test"\n')
        self.server.add_pod(name, 0, "[0] epoch 1\n", phase="Running")
        shown = [waiting.stdout.readline()]
        self.server.be_away(True)
        for line in waiting.stderr:
            if line.endswith("; asking again\n"):
                break
        self.server.say(f"{name}-0", "[0] epoch 2\n")
        self.server.be_away(False)
        shown.append(waiting.stdout.readline())
        terminated = {"state": {"terminated": {"exitCode": 13, "finishedAt": "2027-01-15T08:00:08Z"}}}
        self.server.objects["pods"][f"{name}-0"]["status"] = {"phase": "Failed", "containerStatuses": [terminated]}
        self.fail_job(name)
        rest, said = waiting.communicate(timeout=SECONDS)
        self.assertEqual(waiting.returncode, 13, said)
        self.assertEqual(shown + [rest], [f"[pod/{name}-0/ddprun] [0] epoch {number}\n" for number in (1, 2)] + [""])
        self.assertEqual(self.run_ctl("status", job).returncode, 69)  # kubectl's default context is another one
        self.assertIn("[0] epoch 2", self.ctl("logs", job, "--context=test"))

    def test_wait_without_a_place_for_the_output_names_the_job_and_ends_with_its_end(self):
        with open("/dev/full", "w") as full:
            waiting, job, name = self.submit_and_wait(stdout=full)
        self.server.add_pod(name, 0, "[0] epoch 1\n", phase="Running")
        self.assertEqual(waiting.stderr.readline(), "ddprunctl: can't write to standard output: No space left on device; "
                                                    f"{job} goes on\n")
        self.server.objects["jobs"][name]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        _, said = waiting.communicate(timeout=SECONDS)
        self.assertEqual((waiting.returncode, said), (74, ""))

    def test_a_signal_that_kubectl_hears_too_ends_logs_without_a_word(self):
        job, name = self.submit()
        self.server.add_pod(name, 0, "[0] epoch 1\n", phase="Running")
        self.server.logs_answer.clear()
        logs = self.start("logs", job)
        self.assertTrue(self.server.log_asked.wait(SECONDS))
        os.killpg(logs.pid, signal.SIGINT)
        self.assertEqual((logs.communicate(timeout=SECONDS), logs.returncode), (("", ""), 130))

    def test_a_job_that_kubernetes_refuses_leaves_nothing_and_a_service_alone_refuses_no_job(self):
        self.server.refused.add(("POST", "jobs"))
        done = self.run_ctl("submit", self.job(LEAST))
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        self.assertIn("forbidden", done.stderr)
        self.assertEqual(self.server.objects["services"], {})
        self.server.refused.symmetric_difference_update({("POST", "jobs"), ("PATCH", "services")})
        done = self.run_ctl("submit", self.job(LEAST))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(done.stdout.strip().split("/")[1], self.server.objects["jobs"])
        self.assertIn("its service won't end with it: kubectl: ", done.stderr)

    def test_a_job_that_runs_is_cancelled_by_a_deadline_and_stays(self):
        job, name = self.submit()
        self.server.add_pod(name, 0, "", phase="Running")
        self.ctl("cancel", job)
        self.assertEqual(self.server.objects["jobs"][name]["spec"]["activeDeadlineSeconds"], 1)
        self.fail_job(name, "DeadlineExceeded")
        self.assertEqual(self.status(job)["phase"], "cancelled")

    def test_a_job_that_waits_is_deleted_and_who_waits_for_it_is_told_that_it_is_cancelled(self):
        waiting, job, name = self.submit_and_wait()
        self.ctl("cancel", job)
        self.assertNotIn(name, self.server.objects["jobs"])
        _, said = waiting.communicate(timeout=SECONDS)
        self.assertEqual((waiting.returncode, said), (143, f"ddprunctl: {job} cancelled: it was deleted\n"))
        done = self.run_ctl("status", job)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no such job", done.stderr)

    def test_a_machine_without_kubernetes_is_one_line(self):
        self.server.stop()
        done = self.run_ctl("submit", self.job(LEAST))
        self.assertEqual((done.returncode, done.stdout), (69, ""), done.stderr)
        self.assertRegex(done.stderr, r"^ddprunctl: kubectl: .*\n$")
        self.environment["PATH"] = "/nowhere"
        done = self.run_ctl("submit", self.job(LEAST))
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^ddprunctl: can't start kubectl: .*\n$")


if __name__ == "__main__":
    runner.main()
