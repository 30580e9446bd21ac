// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/kubernetes_state.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <ctime>
#include <map>
#include <set>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/log.h"
#include "ctl/submit/kubernetes_manifest.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

const json::value* find_in(const json::value& value, std::initializer_list<const char*> keys) {
  const json::value* found = &value;
  for (const char* key : keys) {
    const json::object* object = found->if_object();
    found = object != nullptr ? object->if_contains(key) : nullptr;
    if (found == nullptr) return nullptr;
  }
  return found;
}

std::string string_at(const json::value& value, std::initializer_list<const char*> keys) {
  const json::value* found = find_in(value, keys);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

const json::array& list_in(const json::value& value, std::initializer_list<const char*> keys) {
  static const json::array none;
  const json::value* found = find_in(value, keys);
  return found != nullptr && found->is_array() ? found->get_array() : none;
}

// "2026-11-22T03:15:07Z".
std::optional<WallTime> utc_in(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr) return std::nullopt;
  return WallTime(std::chrono::seconds(::timegm(&parts)));
}

// What is known of the pods of one job.
struct PodFacts {
  std::set<std::string> nodes;
  int num_running = 0;
  std::string waits_for;          // why one of them doesn't run yet
  std::optional<int> first_code;  // that no retry mends: of the one that ended first
  std::string first_end;          // when
  bool has_retryable = false;
};

void add_pod(const json::value& pod, PodFacts& facts) {
  if (const std::string node = string_at(pod, {"spec", "nodeName"}); !node.empty()) {
    facts.nodes.insert(node);
  }
  if (string_at(pod, {"status", "phase"}) == "Running") ++facts.num_running;
  for (const json::value& condition : list_in(pod, {"status", "conditions"})) {
    if (string_at(condition, {"type"}) == "PodScheduled" &&
        string_at(condition, {"status"}) == "False") {
      facts.waits_for = string_at(condition, {"message"});
    }
  }
  for (const json::value& container : list_in(pod, {"status", "containerStatuses"})) {
    if (const std::string why = string_at(container, {"state", "waiting", "reason"});
        !why.empty()) {
      facts.waits_for = why + ": " + string_at(container, {"state", "waiting", "message"});
    }
    const json::value* code = find_in(container, {"state", "terminated", "exitCode"});
    if (code == nullptr || !code->is_number() || *code == 0) continue;
    if (*code == static_cast<int>(ExitCode::kRetryable)) {
      facts.has_retryable = true;
      continue;
    }
    const std::string at = string_at(container, {"state", "terminated", "finishedAt"});
    if (!facts.first_code || at < facts.first_end) {
      facts.first_code = code->to_number<int>();
      facts.first_end = at;
    }
  }
}

// The condition `type` that is true; nullptr: it isn't.
const json::value* condition_of(const json::value& job, const char* type) {
  for (const json::value& condition : list_in(job, {"status", "conditions"})) {
    const bool is_true = string_at(condition, {"status"}) == "True";
    if (is_true && string_at(condition, {"type"}) == type) return &condition;
  }
  return nullptr;
}

void set_failure(const json::value& condition, const PodFacts& pods, JobState& state) {
  state.phase = Phase::kFailed;
  state.ended = utc_in(string_at(condition, {"lastTransitionTime"}));
  const std::string reason = string_at(condition, {"reason"});
  state.reason = one_line(reason + ": " + string_at(condition, {"message"}));
  if (reason == "DeadlineExceeded") {
    state.exit_code = static_cast<int>(ExitCode::kTimeLimit);
  } else if (pods.first_code) {
    state.exit_code = pods.first_code;
  } else if (pods.has_retryable) {
    state.exit_code = static_cast<int>(ExitCode::kRetryable);
  }
}

JobState state_of(const json::value& job, const PodFacts& pods) {
  const bool is_set = string_at(job, {"kind"}) == "JobSet";
  JobState state;
  state.id = KubernetesId{string_at(job, {"metadata", "namespace"}),
                          string_at(job, {"metadata", "name"}), is_set}
                 .text();
  state.name = string_at(job, {"metadata", "labels", "app.kubernetes.io/name"});
  state.nodes.assign(pods.nodes.begin(), pods.nodes.end());
  state.submitted = utc_in(string_at(job, {"metadata", "creationTimestamp"}));
  state.began = utc_in(string_at(job, {"status", "startTime"}));
  const char* success = is_set ? "Completed" : "Complete";
  if (const json::value* complete = condition_of(job, success)) {
    state.phase = Phase::kSucceeded;
    state.exit_code = 0;
    state.ended = utc_in(string_at(*complete, {"lastTransitionTime"}));
  } else if (const json::value* failed = condition_of(job, "Failed")) {
    set_failure(*failed, pods, state);
  } else if (pods.num_running > 0) {
    state.phase = Phase::kRunning;
  } else {
    state.phase = Phase::kQueued;
    state.reason = one_line(condition_of(job, "Suspended") != nullptr
                                ? "it is suspended, by its queue or by hand"
                                : pods.waits_for);
  }
  const bool was_cancelled =
      !string_at(job, {"metadata", "annotations", kCancelledAnnotation}).empty();
  if (was_cancelled && state.phase == Phase::kFailed) {
    state.phase = Phase::kCancelled;
    state.exit_code.reset();
    state.reason.clear();
  }
  return state;
}

bool is_kubernetes_name(const std::string& text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos &&
         text.front() != '-';
}

}  // namespace

std::string KubernetesId::text() const {
  return "kubernetes:" + kube_namespace + (is_set ? "/jobset/" : "/") + name;
}

KubernetesId parse_kubernetes_id(const std::string& text) {
  const std::size_t first = text.find('/');
  const std::size_t last = text.rfind('/');
  KubernetesId id;
  if (first != std::string::npos) {
    id.kube_namespace = text.substr(0, first);
    id.name = text.substr(last + 1);
    id.is_set = first != last;
  }
  const bool is_known = first == last || text.substr(first, last - first + 1) == "/jobset/";
  if (!is_known || !is_kubernetes_name(id.name) || !is_kubernetes_name(id.kube_namespace)) {
    throw Error(ErrorCode::kInvalidArgument, "kubernetes:" + one_line(text) +
                                                 " is no job: kubernetes:NAMESPACE/NAME, or "
                                                 "kubernetes:NAMESPACE/jobset/NAME");
  }
  return id;
}

std::vector<JobState> parse_kubernetes_list(std::string_view text) {
  auto parsed = parse_object(text);
  if (!parsed) throw Error(ErrorCode::kProtocol, "what kubectl says is no list of objects");
  const json::value all(std::move(*parsed));
  std::map<std::string, PodFacts> pods;  // by namespace and instance
  const auto instance_of = [](const json::value& object) {
    return string_at(object, {"metadata", "namespace"}) + "/" +
           string_at(object, {"metadata", "labels", kInstanceLabel});
  };
  for (const json::value& object : list_in(all, {"items"})) {
    if (string_at(object, {"kind"}) == "Pod") add_pod(object, pods[instance_of(object)]);
  }
  std::vector<JobState> states;
  for (const json::value& object : list_in(all, {"items"})) {
    const std::string kind = string_at(object, {"kind"});
    // The Job of a JobSet has the set's name with more behind it.
    const bool is_own = string_at(object, {"metadata", "name"}) ==
                        string_at(object, {"metadata", "labels", kInstanceLabel});
    if (kind == "JobSet" || (kind == "Job" && is_own)) {
      states.push_back(state_of(object, pods[instance_of(object)]));
    }
  }
  std::stable_sort(states.begin(), states.end(), [](const JobState& a, const JobState& b) {
    if (is_over(a.phase) != is_over(b.phase)) return is_over(b.phase);
    return a.submitted > b.submitted;
  });
  return states;
}

}  // namespace ddprun::submit
