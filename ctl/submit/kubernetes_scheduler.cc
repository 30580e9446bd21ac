// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/kubernetes_scheduler.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <sstream>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "common/shell_words.h"
#include "ctl/submit/drawn_suffix.h"
#include "ctl/submit/kubernetes_manifest.h"
#include "ctl/submit/rank_map.h"
#include "ctl/submit/run_program.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

constexpr char kJobSets[] = "jobsets.jobset.x-k8s.io";

[[noreturn]] void refuse_as_kubectl(const ProgramEnd& end) {
  const std::string why = failure_text(end);
  const bool is_away = why.find("onnect") != std::string::npos ||
                       why.find("was refused") != std::string::npos ||
                       why.find("imeout") != std::string::npos;
  throw Error(is_away ? ErrorCode::kConnectionLost : ErrorCode::kInvalidArgument,
              "kubectl: " + why);
}

std::string run_kubectl(std::vector<std::string> words, const std::string& input = {}) {
  words.insert(words.begin(), "kubectl");
  ProgramEnd end = run_program({.argv = std::move(words), .input = input, .environment = {}});
  if (end.status != 0) refuse_as_kubectl(end);
  return std::move(end.out);
}

std::vector<std::string> create_words(const JobFile& job) {
  std::vector<std::string> words = {"create", "-f", "-"};
  if (!job.kubernetes.context.empty()) words.push_back("--context=" + job.kubernetes.context);
  return words;
}

struct CreatedObject {
  std::string kind, kube_namespace, name, uid;
};

// A line "KIND NAMESPACE NAME UID" for each.
std::vector<CreatedObject> created_in(const std::string& text) {
  std::vector<CreatedObject> all;
  std::istringstream lines(text);
  for (CreatedObject each; lines >> each.kind >> each.kube_namespace >> each.name >> each.uid;) {
    all.push_back(each);
  }
  return all;
}

// The service ends with its job, whoever ends that.
std::string owner_patch(const CreatedObject& job) {
  json::object owner;
  owner["apiVersion"] = "batch/v1";
  owner["kind"] = job.kind;
  owner["name"] = job.name;
  owner["uid"] = job.uid;
  const json::object metadata = {{"ownerReferences", json::array{owner}}};
  return json::serialize(json::object{{"metadata", metadata}});
}

std::string cancel_patch() {
  // A deadline that is over: pods get SIGTERM and their time, the Job and its logs stay.
  return std::string(R"({"metadata":{"annotations":{")") + kCancelledAnnotation +
         R"(":"true"}},"spec":{"activeDeadlineSeconds":1}})";
}

}  // namespace

Plan KubernetesScheduler::plan(const JobFile& job) {
  std::vector<std::string> words = create_words(job);
  words.insert(words.begin(), "kubectl");
  Plan plan{.how = shell_line(words) + ", over standard input",
            .text = kubernetes_manifest(kubernetes_objects(job, kSuffixToCome)),
            .ranks = rank_map(job, "pod " + job.name + "-" + kSuffixToCome + "-#"),
            .notes = rank_notes(job)};
  plan.notes.push_back(std::string(kSuffixToCome) + " is drawn at submission");
  return plan;
}

std::string KubernetesScheduler::submit(const JobFile& job) {
  std::vector<std::string> words = create_words(job);
  words.push_back(
      "-o=jsonpath={.kind} {.metadata.namespace} {.metadata.name} {.metadata.uid}{\"\\n\"}");
  const std::string manifest = kubernetes_manifest(kubernetes_objects(job, drawn_suffix()));
  const std::vector<CreatedObject> created = created_in(run_kubectl(words, manifest));
  const CreatedObject *owner = nullptr, *service = nullptr;
  for (const CreatedObject& each : created) (each.kind == "Service" ? service : owner) = &each;
  if (owner == nullptr) {
    throw Error(ErrorCode::kProtocol, "kubectl create doesn't say what it made");
  }
  if (service != nullptr) {
    words = {"patch",        "service",
             service->name,  "--namespace=" + service->kube_namespace,
             "--type=merge", "--patch=" + owner_patch(*owner)};
    if (!job.kubernetes.context.empty()) words.push_back("--context=" + job.kubernetes.context);
    run_kubectl(words);
  }
  const std::string id =
      KubernetesId{owner->kube_namespace, owner->name, owner->kind == "JobSet"}.text();
  return id.substr(id.find(':') + 1);
}

std::vector<JobState> KubernetesScheduler::list() {
  const std::string selector = std::string("--selector=") + kManagedByLabel + "=ddprun";
  const auto get = [&](const std::string& kinds) {
    return run_program(
        {.argv = {"kubectl", "get", kinds, selector, "-o=json"}, .input = {}, .environment = {}});
  };
  ProgramEnd end = get(std::string("jobs,pods,") + kJobSets);
  // A cluster without JobSet doesn't know the kind.
  if (end.status != 0 && failure_text(end).find("resource type") != std::string::npos) {
    end = get("jobs,pods");
  }
  if (end.status != 0) refuse_as_kubectl(end);
  return parse_kubernetes_list(end.out);
}

JobState KubernetesScheduler::status(const std::string& id) {
  const KubernetesId which = parse_kubernetes_id(id);
  const std::string kinds = which.is_set ? std::string(kJobSets) + ",pods" : "jobs,pods";
  const std::string list =
      run_kubectl({"get", kinds, std::string("--selector=") + kInstanceLabel + "=" + which.name,
                   "--namespace=" + which.kube_namespace, "-o=json"});
  for (JobState& state : parse_kubernetes_list(list)) {
    if (state.id == which.text()) return std::move(state);
  }
  throw Error(ErrorCode::kInvalidArgument,
              which.text() + ": Kubernetes has no such job (any more)");
}

void KubernetesScheduler::cancel(const std::string& id) {
  const KubernetesId which = parse_kubernetes_id(id);
  const Phase phase = status(id).phase;
  if (is_over(phase)) return;
  const std::string place = "--namespace=" + which.kube_namespace;
  if (which.is_set) {
    run_kubectl({"delete", kJobSets, which.name, place, "--wait=false"});
  } else if (phase == Phase::kQueued) {
    // A deadline doesn't end what a queue keeps suspended.
    run_kubectl({"delete", "job", which.name, place, "--wait=false"});
  } else {
    run_kubectl({"patch", "job", which.name, place, "--type=merge", "--patch=" + cancel_patch()});
  }
}

void KubernetesScheduler::logs(const std::string& id, bool follow, const LogView& view) {
  const KubernetesId which = parse_kubernetes_id(id);
  constexpr std::chrono::milliseconds kLook{1'000};
  constexpr int kMostPods = 1'000;
  std::vector<std::string> words = {"kubectl",
                                    "logs",
                                    std::string("--selector=") + kInstanceLabel + "=" + which.name,
                                    "--namespace=" + which.kube_namespace,
                                    "--tail=-1",
                                    "--prefix",
                                    concat("--max-log-requests=", kMostPods)};
  if (follow) words.emplace_back("--follow");
  for (std::string since;;) {
    const Phase phase = status(id).phase;
    if (follow && phase == Phase::kQueued) {
      if (!view.pause(kLook)) return;
      continue;
    }
    std::vector<std::string> now = words;
    if (!since.empty()) now.push_back("--since-time=" + since);
    since = utc_text(std::chrono::system_clock::now());
    const ProgramEnd end = run_program(
        {.argv = now, .input = {}, .environment = {}, .view = follow ? &view : nullptr});
    // A pod that is being made has no log yet; while others' come that is no failure.
    if (!follow && end.status != 0) refuse_as_kubectl(end);
    if (!follow) view.show(end.out);
    if (!follow || is_over(phase) || !view.pause(kLook)) return;
  }
}

}  // namespace ddprun::submit
