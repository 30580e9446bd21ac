// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "common/shell_words.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/kubernetes.h"
#include "ctl/submit/run_program.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

constexpr char kJobSets[] = "jobsets.jobset.x-k8s.io";

[[noreturn]] void refuse_as_kubectl(const ProgramEnd& end) {
  constexpr std::array kAway = {"onnect",     "was refused",      "imeout",
                                "EOF",        "unable to handle", "ServiceUnavailable",
                                "etcdserver", "TooManyRequests"};
  const std::string why = failure_text(end);
  const bool is_away = std::ranges::any_of(
      kAway, [&](const char* words) { return why.find(words) != std::string::npos; });
  throw Error(is_away ? ErrorCode::kConnectionLost : ErrorCode::kInvalidArgument,
              "kubectl: " + why);
}

// If Kubernetes removes a finished job sooner than this, its end may not be seen: the job is just
// gone.
constexpr std::chrono::minutes kSeenFor{1};
// How much a node's clock may differ. Lines that are fetched twice are shown once.
constexpr std::chrono::minutes kClocksDiffer{5};

std::vector<std::string> kubectl(std::vector<std::string> words, const std::string& context) {
  words.insert(words.begin(), "kubectl");
  if (!context.empty()) words.push_back("--context=" + context);
  return words;
}

struct CreatedObject {
  std::string kind, kube_namespace, name, uid;
};

// Parses a line "KIND NAMESPACE NAME UID" for each object.
std::vector<CreatedObject> created_in(const std::string& text) {
  std::vector<CreatedObject> all;
  std::istringstream lines(text);
  for (CreatedObject each; lines >> each.kind >> each.kube_namespace >> each.name >> each.uid;) {
    all.push_back(each);
  }
  return all;
}

// Makes the job the service's owner, so that the service ends with it, whoever ends the job.
std::string owner_patch(const CreatedObject& job) {
  const json::object owner = {
      {"apiVersion", "batch/v1"}, {"kind", job.kind}, {"name", job.name}, {"uid", job.uid}};
  const json::object metadata = {{"ownerReferences", json::array{owner}}};
  return json::serialize(json::object{{"metadata", metadata}});
}

std::string cancel_patch() {
  // A deadline that has passed: pods get SIGTERM and their grace time, the Job and its logs stay.
  return std::string(R"({"metadata":{"annotations":{")") + kCancelledAnnotation +
         R"(":"true"}},"spec":{"activeDeadlineSeconds":1}})";
}

class KubernetesScheduler : public Scheduler {
 public:
  explicit KubernetesScheduler(std::string context) : context_(std::move(context)) {}

  const char* name() const override { return "kubernetes"; }
  Plan plan(const JobFile& job) override {
    const auto words = kubectl({"create", "-f", "-"}, job.kubernetes.context);
    Plan plan{.how = shell_line(words) + ", over standard input",
              .text = kubernetes_manifest(kubernetes_objects(job, kSuffixToCome)),
              .ranks = rank_map(job, "pod " + job.name + "-" + kSuffixToCome + "-#"),
              .notes = rank_notes(job)};
    plan.notes.push_back(std::string(kSuffixToCome) + " is drawn at submission");
    return plan;
  }

  std::string submit(const JobFile& job) override {
    context_ = job.kubernetes.context;
    is_seen_at_its_end_ = job.kubernetes.keep_finished >= kSeenFor;
    const std::string suffix = drawn_suffix();
    const std::string manifest = kubernetes_manifest(kubernetes_objects(job, suffix));
    ProgramEnd end;
    try {
      end = call({"create", "-f", "-",
                  "-o=jsonpath={.kind} {.metadata.namespace} {.metadata.name} {.metadata.uid}"
                  "{\"\\n\"}"},
                 manifest);
    } catch (const Error& error) {
      if (!may_pass(error)) throw;
      throw Error(error.code(), concat(error.what(), "; ", job.name, "-", suffix,
                                       " may have been submitted all the same"));
    }
    const std::vector<CreatedObject> created = created_in(end.out);
    if (end.status != 0) {
      if (!created.empty()) take_back(created.front().kube_namespace, job.name + "-" + suffix);
      refuse_as_kubectl(end);
    }
    const CreatedObject *owner = nullptr, *service = nullptr;
    for (const CreatedObject& each : created) (each.kind == "Service" ? service : owner) = &each;
    if (owner == nullptr) {
      throw Error(ErrorCode::kProtocol, "kubectl create doesn't say what it made");
    }
    const std::string id =
        KubernetesId{owner->kube_namespace, owner->name, owner->kind == "JobSet"}.text();
    if (service != nullptr) {
      try {
        run({"patch", "service", service->name, "--namespace=" + service->kube_namespace,
             "--type=merge", "--patch=" + owner_patch(*owner)});
      } catch (const Error& error) {  // the job exists nevertheless
        log_warning(id, " is submitted, but its service won't end with it: ", error.what());
      }
    }
    last_seen_ = JobState();
    last_seen_->id = id;
    last_seen_->name = job.name;
    last_seen_->phase = Phase::kQueued;
    return id.substr(id.find(':') + 1);
  }

  std::vector<std::string> flags() const override {
    return context_.empty() ? std::vector<std::string>() : std::vector{"--context=" + context_};
  }

  // Lists the jobs in the context's own namespace.
  std::vector<JobState> list() override {
    const std::string selector = std::string("--selector=") + kManagedByLabel + "=ddprun";
    const auto get = [&](const std::string& kinds) {
      return call({"get", kinds, selector, "-o=json"});
    };
    ProgramEnd end = get(std::string("jobs,pods,") + kJobSets);
    // A cluster without JobSet doesn't know that kind.
    if (end.status != 0 && failure_text(end).find("resource type") != std::string::npos) {
      end = get("jobs,pods");
    }
    if (end.status != 0) refuse_as_kubectl(end);
    return parse_kubernetes_list(end.out);
  }

  JobState status(const std::string& id) override {
    const KubernetesId which = parse_kubernetes_id(id);
    const std::string kinds = which.is_set ? std::string(kJobSets) + ",pods" : "jobs,pods";
    const std::string list =
        run({"get", kinds, std::string("--selector=") + kInstanceLabel + "=" + which.name,
             "--namespace=" + which.kube_namespace, "-o=json"});
    for (JobState& state : parse_kubernetes_list(list)) {
      if (state.id != which.text()) continue;
      last_seen_ = state;
      return std::move(state);
    }
    if (last_seen_ && last_seen_->id == which.text() && !is_over(last_seen_->phase)) {
      JobState state = *last_seen_;
      state.phase = is_seen_at_its_end_ ? Phase::kCancelled : Phase::kUnknown;
      state.reason = "it was deleted";
      return state;
    }
    throw Error(ErrorCode::kInvalidArgument,
                which.text() + ": Kubernetes has no such job (any more)");
  }

  // A running Job is stopped and stays, so that it can be looked at. A waiting one, or a JobSet, is
  // deleted.
  void cancel(const std::string& id) override {
    const KubernetesId which = parse_kubernetes_id(id);
    const Phase phase = status(id).phase;
    if (is_over(phase)) return;
    const std::string place = "--namespace=" + which.kube_namespace;
    if (which.is_set) {
      run({"delete", kJobSets, which.name, place, "--wait=false"});
    } else if (phase == Phase::kQueued) {
      // A deadline doesn't end a Job that a queue keeps suspended.
      run({"delete", "job", which.name, place, "--wait=false"});
    } else {
      run({"patch", "job", which.name, place, "--type=merge", "--patch=" + cancel_patch()});
    }
  }

  void logs(const std::string& id, bool follow, const LogView& view) override {
    const KubernetesId which = parse_kubernetes_id(id);
    constexpr std::chrono::milliseconds kBetweenLooks{1'000};
    constexpr int kMostPods = 1'000;
    std::vector<std::string> words =
        kubectl({"logs", std::string("--selector=") + kInstanceLabel + "=" + which.name,
                 "--namespace=" + which.kube_namespace, "--tail=-1", "--prefix",
                 concat("--max-log-requests=", kMostPods)},
                context_);
    if (!follow) {
      status(id);  // throws if there is no such job; kubectl says nothing then
      const ProgramEnd end =
          run_program({.argv = words, .input = {}, .environment = {}, .view = &view});
      if (end.status != 0) refuse_as_kubectl(end);
      return;
    }
    words.insert(words.end(), {"--follow", "--timestamps"});
    PodLines lines;
    LogView new_lines = view;
    new_lines.show = [&](std::string_view text) { return view.show(lines.take(text)); };
    for (std::string since;;) {
      Phase phase = Phase::kUnknown;
      if (!view.ask([&] { phase = status(id).phase; })) return;
      if (phase == Phase::kQueued) {
        if (!view.pause(kBetweenLooks)) return;
        continue;
      }
      std::vector<std::string> now = words;
      if (!since.empty()) now.push_back("--since-time=" + since);
      since = utc_text(std::chrono::system_clock::now() - kClocksDiffer);
      // kubectl may fail for a pod that has no log yet: that doesn't matter while others have one.
      run_program({.argv = now,
                   .input = {},
                   .environment = {},
                   .limit = std::chrono::milliseconds(0),
                   .view = &new_lines});
      if (!view.show(lines.end()) || phase != Phase::kRunning || !view.pause(kBetweenLooks)) return;
    }
  }

 private:
  ProgramEnd call(const std::vector<std::string>& words, const std::string& input = {}) const {
    return run_program({.argv = kubectl(words, context_), .input = input, .environment = {}});
  }

  // Returns kubectl's output; throws if it fails.
  std::string run(const std::vector<std::string>& words) const {
    ProgramEnd end = call(words);
    if (end.status != 0) refuse_as_kubectl(end);
    return std::move(end.out);
  }

  // Deletes the objects that were made before the job was refused.
  void take_back(const std::string& kube_namespace, const std::string& name) const {
    const std::string selector = std::string("--selector=") + kInstanceLabel + "=" + name;
    try {
      run({"delete", "services,jobs", selector, "--namespace=" + kube_namespace, "--wait=false"});
    } catch (const Error& error) {
      log_warning("what was made of ", name, " may be there still: ", error.what());
    }
  }

  std::string context_;
  bool is_seen_at_its_end_ = true;     // the submitted job isn't removed at once at its end
  std::optional<JobState> last_seen_;  // of the job that was last asked for
};

}  // namespace

std::unique_ptr<Scheduler> kubernetes_scheduler(std::string context) {
  return std::make_unique<KubernetesScheduler>(std::move(context));
}

}  // namespace ddprun::submit
