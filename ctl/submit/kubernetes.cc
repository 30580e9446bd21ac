// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/kubernetes.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <ctime>
#include <set>

#include "common/death_limits.h"
#include "common/endpoint.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/text.h"
#include "ctl/submit/ddprun_command.h"

namespace ddprun::submit {

namespace json = boost::json;
using json_at::at, json_at::list, json_at::text;

namespace {

constexpr char kContainer[] = "ddprun";
constexpr int kRetryableCode = static_cast<int>(ExitCode::kRetryable);
// ddprun's notice of 60 s, its 30 s from SIGTERM to SIGKILL, and the time for killed processes.
constexpr int kGraceSeconds = 60 + 30 + static_cast<int>(kDdprunGoneMargin.count());

// Escapes "$": the kubelet replaces "$(NAME)" by a variable's value, and "$$" by "$".
std::string literal(const std::string& text) {
  std::string escaped;
  for (const char letter : text) escaped.append(letter == '$' ? 2 : 1, letter);
  return escaped;
}

json::array names(const std::vector<std::string>& list) {
  json::array all;
  for (const std::string& name : list) all.push_back(json::object{{"name", name}});
  return all;
}

void set_text(json::object& object, const char* key, const std::string& value) {
  if (!value.empty()) object[key] = value;
}

json::object labels_of(const JobFile& job, const std::string& name) {
  json::object labels;
  for (const auto& [key, value] : job.kubernetes.labels) labels[key] = value;
  labels["app.kubernetes.io/name"] = job.name;
  labels[kInstanceLabel] = name;
  labels[kManagedByLabel] = "ddprun";
  return labels;
}

json::object metadata_of(const JobFile& job, const std::string& name) {
  json::object metadata;
  metadata["name"] = name;
  set_text(metadata, "namespace", job.kubernetes.kube_namespace);
  metadata["labels"] = labels_of(job, name);
  return metadata;
}

json::object container_of(const JobFile& job) {
  // A pod gets SIGTERM before it is taken away.
  const CommandTraits traits{.ddprun = "ddprun",
                             .default_nodes = "1",
                             .says_nodes = true,
                             .flags = {"--preemption-signals=SIGTERM,SIGUSR1"}};
  json::object container;
  container["name"] = kContainer;
  container["image"] = job.kubernetes.image;
  set_text(container, "imagePullPolicy", job.kubernetes.image_pull_policy);
  json::array words;
  for (const std::string& word : ddprun_command(job, traits)) words.emplace_back(literal(word));
  container["command"] = std::move(words);
  set_text(container, "workingDir", job.directory);
  json::array variables;
  for (const auto& [name, value] : job.environment) {
    variables.push_back(json::object{{"name", name}, {"value", literal(value)}});
  }
  if (!variables.empty()) container["env"] = std::move(variables);
  json::array sources;
  for (const std::string& name : job.kubernetes.secrets) {
    sources.push_back(json::object{{"secretRef", json::object{{"name", name}}}});
  }
  if (!sources.empty()) container["envFrom"] = std::move(sources);
  json::object amounts;
  set_text(amounts, "cpu", job.kubernetes.cpus);
  set_text(amounts, "memory", job.kubernetes.memory);
  if (const auto gpus = job.kubernetes.gpus_per_node) {
    amounts[job.kubernetes.gpu_resource] = std::to_string(*gpus);
  }
  if (!amounts.empty()) container["resources"] = {{"limits", amounts}, {"requests", amounts}};
  json::array mounts = {json::object{{"name", "shared-memory"}, {"mountPath", "/dev/shm"}}};
  int number = 0;
  for (const auto& volume : job.kubernetes.volumes) {
    mounts.push_back(
        json::object{{"name", "volume-" + std::to_string(number++)}, {"mountPath", volume.second}});
  }
  container["volumeMounts"] = std::move(mounts);
  return container;
}

json::array volumes_of(const JobFile& job) {
  const json::object memory = {{"medium", "Memory"}, {"sizeLimit", job.kubernetes.shared_memory}};
  json::array volumes = {json::object{{"name", "shared-memory"}, {"emptyDir", memory}}};
  int number = 0;
  for (const auto& volume : job.kubernetes.volumes) {
    volumes.push_back(
        json::object{{"name", "volume-" + std::to_string(number++)},
                     {"persistentVolumeClaim", json::object{{"claimName", volume.first}}}});
  }
  return volumes;
}

json::object pod_template(const JobFile& job, const std::string& name, bool has_subdomain) {
  const KubernetesKeys& keys = job.kubernetes;
  json::object pod;
  if (has_subdomain) pod["subdomain"] = name;
  pod["restartPolicy"] = "Never";
  pod["terminationGracePeriodSeconds"] = kGraceSeconds;
  set_text(pod, "serviceAccountName", keys.service_account);
  set_text(pod, "priorityClassName", keys.priority_class);
  if (!keys.image_pull_secrets.empty()) pod["imagePullSecrets"] = names(keys.image_pull_secrets);
  if (!keys.node_selector.empty()) {
    json::object selector;
    for (const auto& [key, value] : keys.node_selector) selector[key] = value;
    pod["nodeSelector"] = std::move(selector);
  }
  pod["containers"] = json::array{container_of(job)};
  pod["volumes"] = volumes_of(job);
  return {{"metadata", json::object{{"labels", labels_of(job, name)}}}, {"spec", std::move(pod)}};
}

// The first matching rule counts. Without a match the pod counts as a failure of its index.
json::object failure_policy() {
  const json::object disrupted = {
      {"action", "Ignore"},
      {"onPodConditions",
       json::array{json::object{{"type", "DisruptionTarget"}, {"status", "True"}}}}};
  const json::object others = {
      {"action", "FailJob"},
      {"onExitCodes", json::object{{"containerName", kContainer},
                                   {"operator", "NotIn"},
                                   {"values", json::array{kRetryableCode}}}}};
  return {{"rules", json::array{disrupted, others}}};
}

json::object job_spec(const JobFile& job, const std::string& name, bool is_in_set) {
  const int num_pods = nodes_wanted(job).most;
  json::object spec;
  spec["completionMode"] = "Indexed";
  spec["completions"] = num_pods;
  spec["parallelism"] = num_pods;
  if (is_in_set) {
    spec["backoffLimit"] = 0;  // the JobSet makes all pods anew
  } else {
    spec["backoffLimitPerIndex"] = job.restarts.requeues;
    spec["maxFailedIndexes"] = 0;
    spec["ttlSecondsAfterFinished"] = job.kubernetes.keep_finished.count();
    if (!job.kubernetes.queue.empty()) spec["suspend"] = true;
  }
  if (job.limits.time) spec["activeDeadlineSeconds"] = job.limits.time->count();
  spec["podFailurePolicy"] = failure_policy();
  if (job.spares > 0 || job.min_nodes < job.max_nodes) {
    // Without this, pods that never found a node would keep the job from its end.
    spec["successPolicy"] = {
        {"rules", json::array{json::object{{"succeededCount", std::max(job.min_nodes, 1)}}}}};
  }
  spec["template"] = pod_template(job, name, !is_in_set);
  return spec;
}

void add_queue(const JobFile& job, json::object& metadata) {
  if (!job.kubernetes.queue.empty()) {
    metadata["labels"].as_object()["kueue.x-k8s.io/queue-name"] = job.kubernetes.queue;
  }
}

json::object service_of(const JobFile& job, const std::string& name) {
  const json::object port = {{"name", "rendezvous"}, {"port", kDefaultRendezvousPort}};
  return {{"apiVersion", "v1"},
          {"kind", "Service"},
          {"metadata", metadata_of(job, name)},
          {"spec", json::object{{"clusterIP", "None"},
                                {"publishNotReadyAddresses", true},
                                {"selector", json::object{{kInstanceLabel, name}}},
                                {"ports", json::array{port}}}}};
}

json::object indexed_job(const JobFile& job, const std::string& name) {
  json::object metadata = metadata_of(job, name);
  add_queue(job, metadata);
  return {{"apiVersion", "batch/v1"},
          {"kind", "Job"},
          {"metadata", metadata},
          {"spec", job_spec(job, name, false)}};
}

json::object job_set(const JobFile& job, const std::string& name) {
  const json::object replicated = {
      {"name", "nodes"},
      {"replicas", 1},
      {"template", json::object{{"metadata", json::object{{"labels", labels_of(job, name)}}},
                                {"spec", job_spec(job, name, true)}}}};
  const json::object rule = {
      {"name", "notWorthRetrying"},
      {"action", "FailJobSet"},
      {"onJobFailureReasons", json::array{"PodFailurePolicy", "DeadlineExceeded"}}};
  json::object spec;
  spec["network"] = json::object{
      {"enableDNSHostnames", true}, {"subdomain", name}, {"publishNotReadyAddresses", true}};
  spec["failurePolicy"] =
      json::object{{"maxRestarts", job.restarts.requeues}, {"rules", json::array{rule}}};
  spec["ttlSecondsAfterFinished"] = job.kubernetes.keep_finished.count();
  if (!job.kubernetes.queue.empty()) spec["suspend"] = true;
  spec["replicatedJobs"] = json::array{replicated};
  json::object metadata = metadata_of(job, name);
  add_queue(job, metadata);
  return {{"apiVersion", "jobset.x-k8s.io/v1alpha2"},
          {"kind", "JobSet"},
          {"metadata", metadata},
          {"spec", spec}};
}

void check_for_kubernetes(const JobFile& job) {
  std::string problems;
  const auto refuse = [&](const std::string& what) {
    problems += (problems.empty() ? "" : "\n") + job.path + ": " + what;
  };
  constexpr std::size_t kMostLetters = 40;
  const std::string& name = job.name;
  const bool is_name =
      name.size() <= kMostLetters && name.front() >= 'a' && name.front() <= 'z' &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
  if (!is_name) {
    refuse("name: Kubernetes wants at most 40 small letters, digits and \"-\", a letter first");
  }
  if (job.kubernetes.image.empty()) refuse("it names no image: image = … in [to.kubernetes]");
  if (!problems.empty()) throw Error(ErrorCode::kInvalidArgument, problems);
}

// Whether YAML reads the text as it stands: letters, digits and harmless signs, with a letter
// first. Words that YAML 1.1 reads as a truth value or null aren't plain.
bool is_plain(std::string_view text) {
  constexpr std::string_view kOthers =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
  constexpr std::string_view kMeant[] = {"y",   "n",    "yes",   "no",  "on",
                                         "off", "true", "false", "null"};
  if (text.empty() || text.find_first_not_of(kOthers) != std::string_view::npos) return false;
  const char first = text.front();
  if (!((first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z'))) return false;
  return std::ranges::none_of(
      kMeant, [text](std::string_view meant) { return equals_ignoring_case(meant, text); });
}

std::string scalar(const json::value& value) {
  if (const json::string* text = value.if_string()) {
    if (is_plain({text->data(), text->size()})) return std::string(*text);
  }
  // Also writes {} and []. JSON's form escapes characters that YAML refuses, or reads as ends of
  // lines.
  return shown_json(json::serialize(value));
}

bool is_block(const json::value& value) {
  return (value.is_object() && !value.get_object().empty()) ||
         (value.is_array() && !value.get_array().empty());
}

void write(const json::value& value, std::size_t depth, bool is_begun, std::string& out) {
  const std::string indent(depth, ' ');
  const auto begin_line = [&] {
    if (!is_begun) out += indent;
    is_begun = false;
  };
  if (const json::object* object = value.if_object()) {
    for (const auto& [key, each] : *object) {
      begin_line();
      out += scalar(json::value(key)) + ":";
      if (is_block(each)) {
        out += '\n';
        write(each, depth + 2, false, out);
      } else {
        out += " " + scalar(each) + "\n";
      }
    }
  } else if (const json::array* array = value.if_array()) {
    for (const json::value& each : *array) {
      begin_line();
      out += "- ";
      if (is_block(each)) {
        write(each, depth + 2, true, out);
      } else {
        out += scalar(each) + "\n";
      }
    }
  }
}

// Parses "2026-11-22T03:15:07Z".
std::optional<WallTime> utc_in(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr) return std::nullopt;
  return WallTime(std::chrono::seconds(::timegm(&parts)));
}

// Facts about the pods of one job.
struct PodFacts {
  std::set<std::string> nodes;
  int num_running = 0;
  std::string waits_for;          // why a pod doesn't run yet
  std::optional<int> first_code;  // of the pod that ended first: a code that no retry corrects
  std::string first_end;          // when that pod ended
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

// Returns the condition `type` if it is true; nullptr: it isn't.
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

std::vector<json::object> kubernetes_objects(const JobFile& job, const std::string& suffix) {
  check_for_kubernetes(job);
  const std::string name = job.name + "-" + suffix;
  if (job.kubernetes.kind == "jobset") return {job_set(job, name)};
  return {service_of(job, name), indexed_job(job, name)};
}

std::string kubernetes_manifest(const std::vector<json::object>& objects) {
  std::string text;
  for (const json::object& object : objects)
    text += (text.empty() ? "" : "---\n") + to_yaml(object);
  return text;
}

std::string to_yaml(const json::value& value) {
  if (!is_block(value)) return scalar(value) + "\n";
  std::string out;
  write(value, 0, false, out);
  return out;
}

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
    // A JobSet's own Jobs have longer names than the set.
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

std::int64_t log_time_of(std::string_view text) {
  const std::string copy(text);
  std::tm parts{};
  const char* at = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (at == nullptr) return -1;
  std::int64_t ns = 0;
  if (*at == '.') {
    std::int64_t unit = 100'000'000;
    for (++at; *at >= '0' && *at <= '9'; ++at, unit /= 10) ns += (*at - '0') * unit;
  }
  int offset = 0;
  if (std::string_view(at) != "Z") {
    int hours = 0, minutes = 0, read = 0;
    const bool is_offset = std::sscanf(at, "%3d:%2d%n", &hours, &minutes, &read) == 2;
    if (!is_offset || at[read] != '\0') return -1;
    offset = hours * 3'600 + (*at == '-' ? -minutes : minutes) * 60;
  }
  return (static_cast<std::int64_t>(::timegm(&parts)) - offset) * 1'000'000'000 + ns;
}

std::string PodLines::take(std::string_view text) {
  std::string all;
  held_ += text;
  std::size_t begin = 0;
  for (std::size_t end; (end = held_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    all += new_of(std::string_view(held_).substr(begin, end - begin));
  }
  held_.erase(0, begin);
  return all;
}

std::string PodLines::end() {
  std::string last = held_.empty() ? "" : new_of(held_);
  held_.clear();
  before_ = now_;
  again_.clear();
  return last;
}

std::string PodLines::new_of(std::string_view line) {
  const std::size_t pod_end = line.starts_with('[') ? line.find("] ") : std::string_view::npos;
  if (pod_end == std::string_view::npos) return std::string(line) + "\n";
  const std::string pod(line.substr(0, pod_end + 2));
  const std::string_view rest = line.substr(pod_end + 2);
  const std::size_t time_end = rest.find(' ');
  const std::int64_t when = log_time_of(rest.substr(0, time_end));
  if (when < 0) return std::string(line) + "\n";
  // A pod's lines aren't exactly in the order of their times, since they are from stdout and
  // stderr.
  if (const auto old = before_.find(pod); old != before_.end()) {
    if (when < old->second.latest) return {};
    if (when == old->second.latest && again_[pod]++ < old->second.num_then) return {};
  }
  Mark& mark = now_[pod];
  if (when > mark.latest) mark = {when, 0};
  if (when == mark.latest) ++mark.num_then;
  const std::string_view said = time_end == std::string_view::npos ? "" : rest.substr(time_end + 1);
  return pod + std::string(said) + "\n";
}

}  // namespace ddprun::submit
