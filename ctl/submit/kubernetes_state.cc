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
#include "common/json_at.h"
#include "common/log.h"
#include "ctl/submit/kubernetes_manifest.h"

namespace ddprun::submit {

namespace json = boost::json;
using json_at::at, json_at::list, json_at::text;

namespace {

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
  if (const std::string node = text(pod, "spec", "nodeName"); !node.empty()) {
    facts.nodes.insert(node);
  }
  if (text(pod, "status", "phase") == "Running") ++facts.num_running;
  for (const json::value& condition : list(pod, "status", "conditions")) {
    if (text(condition, "type") == "PodScheduled" && text(condition, "status") == "False") {
      facts.waits_for = text(condition, "message");
    }
  }
  for (const json::value& container : list(pod, "status", "containerStatuses")) {
    if (const std::string why = text(container, "state", "waiting", "reason"); !why.empty()) {
      facts.waits_for = why + ": " + text(container, "state", "waiting", "message");
    }
    const json::value& code = at(container, "state", "terminated", "exitCode");
    if (!code.is_number() || code == 0) continue;
    if (code == static_cast<int>(ExitCode::kRetryable)) {
      facts.has_retryable = true;
      continue;
    }
    const std::string end = text(container, "state", "terminated", "finishedAt");
    if (!facts.first_code || end < facts.first_end) {
      facts.first_code = code.to_number<int>();
      facts.first_end = end;
    }
  }
}

// The condition `type` that is true; nullptr: it isn't.
const json::value* condition_of(const json::value& job, const char* type) {
  for (const json::value& condition : list(job, "status", "conditions")) {
    const bool is_true = text(condition, "status") == "True";
    if (is_true && text(condition, "type") == type) return &condition;
  }
  return nullptr;
}

void set_failure(const json::value& condition, const PodFacts& pods, JobState& state) {
  state.phase = Phase::kFailed;
  state.ended = utc_in(text(condition, "lastTransitionTime"));
  const std::string reason = text(condition, "reason");
  state.reason = one_line(reason + ": " + text(condition, "message"));
  if (reason == "DeadlineExceeded") {
    state.exit_code = static_cast<int>(ExitCode::kTimeLimit);
  } else if (pods.first_code) {
    state.exit_code = pods.first_code;
  } else if (pods.has_retryable) {
    state.exit_code = static_cast<int>(ExitCode::kRetryable);
  }
}

JobState state_of(const json::value& job, const PodFacts& pods) {
  const bool is_set = text(job, "kind") == "JobSet";
  JobState state;
  state.id = KubernetesId{text(job, "metadata", "namespace"), text(job, "metadata", "name"), is_set}
                 .text();
  state.name = text(job, "metadata", "labels", "app.kubernetes.io/name");
  state.nodes.assign(pods.nodes.begin(), pods.nodes.end());
  state.submitted = utc_in(text(job, "metadata", "creationTimestamp"));
  state.began = utc_in(text(job, "status", "startTime"));
  const char* success = is_set ? "Completed" : "Complete";
  if (const json::value* complete = condition_of(job, success)) {
    state.phase = Phase::kSucceeded;
    state.exit_code = 0;
    state.ended = utc_in(text(*complete, "lastTransitionTime"));
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
  const bool was_cancelled = !text(job, "metadata", "annotations", kCancelledAnnotation).empty();
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

std::vector<JobState> parse_kubernetes_list(std::string_view answer) {
  auto parsed = parse_object(answer);
  if (!parsed) throw Error(ErrorCode::kProtocol, "what kubectl says is no list of objects");
  const json::value all(std::move(*parsed));
  std::map<std::string, PodFacts> pods;  // by namespace and instance
  const auto instance_of = [](const json::value& object) {
    return text(object, "metadata", "namespace") + "/" +
           text(object, "metadata", "labels", kInstanceLabel);
  };
  for (const json::value& object : list(all, "items")) {
    if (text(object, "kind") == "Pod") add_pod(object, pods[instance_of(object)]);
  }
  std::vector<JobState> states;
  for (const json::value& object : list(all, "items")) {
    const std::string kind = text(object, "kind");
    // The Job of a JobSet has the set's name with more behind it.
    const bool is_own =
        text(object, "metadata", "name") == text(object, "metadata", "labels", kInstanceLabel);
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
