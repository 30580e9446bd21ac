// SPDX-License-Identifier: Apache-2.0
// The manifest, and kubectl's output. manifest_test.py shows that Kubernetes takes the manifest.
#include "ctl/submit/kubernetes.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

namespace ddprun::submit {
namespace {

namespace json = boost::json;
using Catch::Matchers::Equals;
using ddprun::test::Contains;

JobFile pods_job(const std::string& more, const std::string& top = "") {
  return JobFile::parse("name = \"digits\"\ncommand = [\"train\", \"$(HOME) $x\"]\n" + top +
                            "\n[to.kubernetes]\nimage = \"i:1\"\n" + more,
                        "job.toml", "/home/ada");
}

json::value object_of(const JobFile& job, std::size_t which) {
  return kubernetes_objects(job, "k3v9x").at(which);
}

const json::value& pod_of(const json::value& job) { return job.at_pointer("/spec/template/spec"); }

TEST_CASE("YAML: blocks, and quotes around what could be taken for something else") {
  const json::value value = json::parse(
      R"({"a": {"b": ["x", {"c": 1, "d": [true, "true"]}, []], "e": {}}, "f": "a: b", "g": "1",
          "h": "line\nline", "n": "No", "i": null})");
  CHECK_THAT(to_yaml(value), Equals("a:\n"
                                    "  b:\n"
                                    "    - x\n"
                                    "    - c: 1\n"
                                    "      d:\n"
                                    "        - true\n"
                                    "        - \"true\"\n"
                                    "    - []\n"
                                    "  e: {}\n"
                                    "f: \"a: b\"\n"
                                    "g: \"1\"\n"
                                    "h: \"line\\nline\"\n"
                                    "\"n\": \"No\"\n"
                                    "i: null\n"));
}

TEST_CASE("YAML: characters that end its lines, or that it refuses, are written out") {
  CHECK(to_yaml(json::value("a\u0085b\u2028\x7f\uFEFF\uFFFE\uFFFF")) ==
        "\"a\\u0085b\\u2028\\u007f\\ufeff\\ufffe\\uffff\"\n");
}

TEST_CASE("Kubernetes: an Indexed Job whose pods find each other through a headless service") {
  const JobFile job = pods_job("", "nodes = 2\nworkers_per_node = 4");
  const json::value service = object_of(job, 0);
  CHECK(service.at_pointer("/metadata/name") == "digits-k3v9x");
  CHECK(service.at_pointer("/spec/clusterIP") == "None");
  CHECK(service.at_pointer("/spec/publishNotReadyAddresses") == true);
  const json::value indexed = object_of(job, 1);
  CHECK(indexed.at_pointer("/spec/completionMode") == "Indexed");
  CHECK(indexed.at_pointer("/spec/completions") == 2);
  CHECK(indexed.at_pointer("/spec/parallelism") == 2);
  CHECK(pod_of(indexed).at("subdomain") == "digits-k3v9x");
  CHECK(pod_of(indexed).at_pointer("/volumes/0/emptyDir/sizeLimit") == "1Gi");
  CHECK(indexed.at_pointer("/spec/template/metadata/labels") ==
        service.at_pointer("/metadata/labels"));
  CHECK(service.at_pointer("/spec/selector") ==
        json::value{{"app.kubernetes.io/instance", "digits-k3v9x"}});
}

TEST_CASE("Kubernetes: no variable of the kubelet's in the command or the environment") {
  const json::value indexed = object_of(
      pods_job("secrets = [\"s\"]\n[environment]\nA = \"$(B)\"\n", "workers_per_node = 2"), 1);
  const json::value& container = pod_of(indexed).at("containers").at(0);
  CHECK(container.at("command") == json::value{"ddprun", "--preemption-signals=SIGTERM,SIGUSR1",
                                               "--nnodes=1", "--nproc-per-node=2", "train",
                                               "$$(HOME) $$x"});
  CHECK(container.at_pointer("/env/0/value") == "$$(B)");
  CHECK(container.at_pointer("/envFrom/0/secretRef/name") == "s");
}

TEST_CASE(
    "Kubernetes: 75 makes a pod anew, a disruption doesn't count, any other code is the end") {
  const json::value spec =
      object_of(pods_job("", "restarts.requeues = 7\nlimits.time = \"1h\""), 1).at("spec");
  CHECK(spec.at("backoffLimitPerIndex") == 7);
  CHECK(spec.at("maxFailedIndexes") == 0);
  CHECK(spec.at("activeDeadlineSeconds") == 3600);
  const json::value& rules = spec.at_pointer("/podFailurePolicy/rules");
  CHECK(rules.at(0).at("action") == "Ignore");
  CHECK(rules.at(0).at_pointer("/onPodConditions/0/type") == "DisruptionTarget");
  CHECK(rules.at(1).at("action") == "FailJob");
  CHECK(rules.at(1).at_pointer("/onExitCodes/operator") == "NotIn");
  CHECK(rules.at(1).at_pointer("/onExitCodes/values") == json::value(json::array{75}));
}

TEST_CASE("Kubernetes: pods of an elastic job that found no place don't keep it") {
  const json::value spec = object_of(pods_job("", "nodes = \"2:4\"\nspares = 1"), 1).at("spec");
  CHECK(spec.at("completions") == 5);
  CHECK(spec.at_pointer("/successPolicy/rules/0/succeededCount") == 2);
  CHECK_FALSE(object_of(pods_job(""), 1).at("spec").as_object().contains("successPolicy"));
}

TEST_CASE("Kubernetes: a pod asks for the job's resources, volumes and nodes") {
  const json::value pod = pod_of(object_of(
      pods_job("cpus = 32\nmemory = \"256Gi\"\ngpus_per_node = 4\nshared_memory = \"16Gi\"\n"
               "image_pull_policy = \"Always\"\nimage_pull_secrets = [\"r\"]\n"
               "service_account = \"t\"\npriority_class = \"p\"\nvolumes.data = \"/data\"\n"
               "node_selector.pool = \"a\"\nlabels.team = \"vision\"\n"),
      1));
  const json::value& container = pod.at("containers").at(0);
  CHECK(container.at_pointer("/resources/limits") ==
        json::value{{"cpu", "32"}, {"memory", "256Gi"}, {"nvidia.com/gpu", "4"}});
  CHECK(container.at_pointer("/volumeMounts/1") ==
        json::value{{"name", "volume-0"}, {"mountPath", "/data"}});
  CHECK(pod.at_pointer("/volumes/0/emptyDir/sizeLimit") == "16Gi");
  CHECK(pod.at_pointer("/volumes/1/persistentVolumeClaim/claimName") == "data");
  CHECK(pod.at_pointer("/nodeSelector/pool") == "a");
  CHECK(pod.at("serviceAccountName") == "t");
  CHECK(pod.at_pointer("/imagePullSecrets/0/name") == "r");
}

TEST_CASE("Kubernetes: a JobSet begins anew where that is worth it, and fails otherwise") {
  const JobFile job = pods_job("kind = \"jobset\"\nqueue = \"q\"\n", "nodes = 2");
  CHECK(kubernetes_objects(job, "k3v9x").size() == 1);
  const json::value set = object_of(job, 0);
  CHECK(set.at("kind") == "JobSet");
  CHECK(set.at_pointer("/metadata/labels").at("kueue.x-k8s.io/queue-name") == "q");
  CHECK(set.at_pointer("/spec/suspend") == true);
  CHECK(set.at_pointer("/spec/network/publishNotReadyAddresses") == true);
  CHECK(set.at_pointer("/spec/failurePolicy/maxRestarts") == 20);
  CHECK(set.at_pointer("/spec/failurePolicy/rules/0/action") == "FailJobSet");
  const json::value& spec = set.at_pointer("/spec/replicatedJobs/0/template/spec");
  CHECK(spec.at("backoffLimit") == 0);
  CHECK_FALSE(spec.at_pointer("/template/spec").as_object().contains("subdomain"));
}

TEST_CASE("Kubernetes: a name or an image that it doesn't take is refused, both at once") {
  const auto job = JobFile::parse("name = \"My.Job\"\ncommand = [\"x\"]", "job.toml", "/");
  const std::string why = ddprun::test::error_of([&] { kubernetes_objects(job, "k3v9x"); }).what();
  CHECK_THAT(why, Contains("job.toml: name: Kubernetes wants") &&
                      Contains("\njob.toml: it names no image"));
}

constexpr char kMetadata[] =
    R"("metadata": {"namespace": "n", "name": "digits-k3v9x", "creationTimestamp":
       "2027-01-15T08:00:00Z", "labels": {"app.kubernetes.io/name": "digits",
       "app.kubernetes.io/instance": "digits-k3v9x"}%s})";

JobState state_of_list(const std::string& status, const std::string& pods,
                       const std::string& annotations = "") {
  std::string metadata = kMetadata;
  metadata.replace(metadata.find("%s"), 2, annotations);
  std::string text = R"({"kind": "List", "items": [{"kind": "Job", )" + metadata +
                     R"(, "status": )" + status + "}";
  if (!pods.empty()) {
    std::string of_pod = kMetadata;
    of_pod.replace(of_pod.find("%s"), 2, "");
    text += R"(, {"kind": "Pod", )" + of_pod + ", " + pods + "}";
  }
  const auto states = parse_kubernetes_list(text + "]}");
  REQUIRE(states.size() == 1);
  return states.front();
}

constexpr char kFailedStatus[] =
    R"({"startTime": "2027-01-15T08:00:01Z", "conditions": [{"type": "Failed", "status": "True",
        "reason": "PodFailurePolicy", "message": "Container ddprun failed",
        "lastTransitionTime": "2027-01-15T08:00:09Z"}]})";

TEST_CASE("Kubernetes: a job that waits, runs, and has succeeded") {
  const JobState waiting =
      state_of_list("{}", R"("status": {"phase": "Pending", "conditions": [{"type": "PodScheduled",
              "status": "False", "message": "0/3 nodes are available"}]})");
  CHECK(waiting.id == "kubernetes:n/digits-k3v9x");
  CHECK(waiting.name == "digits");
  CHECK(waiting.phase == Phase::kQueued);
  CHECK(waiting.reason == "0/3 nodes are available");
  const JobState running = state_of_list(
      R"({"active": 1})", R"("spec": {"nodeName": "gpu07"}, "status": {"phase": "Running"})");
  CHECK(running.phase == Phase::kRunning);
  CHECK(running.nodes == std::vector<std::string>{"gpu07"});
  const JobState over = state_of_list(
      R"({"conditions": [{"type": "Complete", "status": "True",
          "lastTransitionTime": "2027-01-15T08:00:09Z"}]})",
      "");
  CHECK(over.phase == Phase::kSucceeded);
  CHECK(over.exit_code == 0);
  CHECK(utc_text(*over.ended) == "2027-01-15T08:00:09Z");
}

TEST_CASE("Kubernetes: a failed job has the code that ended it, and one that was cancelled none") {
  const std::string pod =
      R"("status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated":
         {"exitCode": 13, "finishedAt": "2027-01-15T08:00:08Z"}}}]})";
  const JobState failed = state_of_list(kFailedStatus, pod);
  CHECK(failed.phase == Phase::kFailed);
  CHECK(failed.exit_code == 13);
  CHECK(failed.reason == "PodFailurePolicy: Container ddprun failed");
  const JobState cancelled =
      state_of_list(kFailedStatus, pod, R"(, "annotations": {"ddprun/cancelled": "true"})");
  CHECK(cancelled.phase == Phase::kCancelled);
  CHECK_FALSE(cancelled.exit_code.has_value());
  const JobState late = state_of_list(
      R"({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]})",
      "");
  CHECK(late.exit_code == 124);
}

TEST_CASE("Kubernetes: a JobSet is a job, the Job that its controller made of it is none") {
  const auto states = parse_kubernetes_list(
      R"({"items": [{"kind": "JobSet", "metadata": {"namespace": "n", "name": "a-k3v9x", "labels":
          {"app.kubernetes.io/instance": "a-k3v9x"}}, "status": {"conditions":
          [{"type": "Completed", "status": "True"}]}},
          {"kind": "Job", "metadata": {"namespace": "n", "name": "a-k3v9x-nodes-0", "labels":
          {"app.kubernetes.io/instance": "a-k3v9x"}}, "status": {}}]})");
  REQUIRE(states.size() == 1);
  CHECK(states[0].id == "kubernetes:n/jobset/a-k3v9x");
  CHECK(states[0].phase == Phase::kSucceeded);
}

TEST_CASE("Pods' lines: each is shown once, however often kubectl begins anew") {
  PodLines lines;
  const std::string a = "[pod/a/ddprun] ", b = "[pod/b/ddprun] ";
  const std::string first = "2027-01-15T08:00:00.000000001Z",
                    next = "2027-01-15T08:00:00.000000002Z";
  CHECK(lines.take(a + first + " one\n" + a + next + " two\n" + a) == a + "one\n" + a + "two\n");
  CHECK(lines.take(next + " three\n") == a + "three\n");
  // The lines come out of order, as a pod's stdout and stderr may.
  CHECK(lines.take(a + first + " late\n" + b + next + " half") == a + "late\n");
  CHECK(lines.end() == b + "half\n");
  const std::string again = a + first + " one\n" + a + next + " two\n" + a + next + " three\n";
  CHECK(lines.take(again + a + next + " four\n" + b + next + " half\n" + b + next + "\n") ==
        a + "four\n" + b + "\n");
  CHECK(lines.end().empty());
  CHECK(lines.take(again + a + next + " four\n").empty());
  // Lines of a new pod, on a node whose clock is late; and lines without a time.
  CHECK(lines.take("[pod/c/ddprun] " + first + " new\n[pod/c/ddprun] x y\nfailed\n") ==
        "[pod/c/ddprun] new\n[pod/c/ddprun] x y\nfailed\n");
}

TEST_CASE("Pods' lines: times as kubelets write them") {
  CHECK(log_time_of("1970-01-01T00:00:01Z") == 1'000'000'000);
  CHECK(log_time_of("1970-01-01T00:00:01.5Z") == 1'500'000'000);
  CHECK(log_time_of("1970-01-01T02:00:01.000000007+02:00") == 1'000'000'007);
  CHECK(log_time_of("1969-12-31T23:30:02.0-00:30") == 2'000'000'000);
  for (const char* text : {"", "epoch", "1970-01-01T00:00:01", "1970-01-01T00:00:01+2",
                           "1970-01-01T00:00:01Zx", "1970-01-01 00:00:01Z"}) {
    INFO(text);
    CHECK(log_time_of(text) == -1);
  }
}

TEST_CASE("Kubernetes: a text that is no list, or no id, is an error") {
  CHECK_THROWS(parse_kubernetes_list("Error from server"));
  CHECK_THROWS(parse_kubernetes_list("[]"));
  CHECK(parse_kubernetes_list("{}").empty());
  CHECK(parse_kubernetes_id("n/jobset/x").is_set);
  CHECK(parse_kubernetes_id("n/x").text() == "kubernetes:n/x");
  for (const char* text : {"x", "n/", "/x", "n/pod/x", "n/-x", "-n/x", "n/x y"}) {
    INFO(text);
    CHECK_THROWS(parse_kubernetes_id(text));
  }
}

}  // namespace
}  // namespace ddprun::submit
