// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/kubernetes_manifest.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "common/endpoint.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/rank_map.h"
#include "ctl/submit/yaml_text.h"

namespace ddprun::submit {

namespace json = boost::json;

namespace {

constexpr char kContainer[] = "ddprun";
constexpr int kRetryableCode = static_cast<int>(ExitCode::kRetryable);
// ddprun's notice of 60 s, its 30 s from SIGTERM to SIGKILL, and as much again.
constexpr int kGraceSeconds = 120;

// The kubelet takes "$(NAME)" for a variable's value, and "$$" for "$".
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
  // SIGTERM is what a pod gets before it is taken away.
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
  json::object memory;
  memory["medium"] = "Memory";
  memory["sizeLimit"] = job.kubernetes.shared_memory;
  json::array volumes = {json::object{{"name", "shared-memory"}, {"emptyDir", memory}}};
  int number = 0;
  for (const auto& volume : job.kubernetes.volumes) {
    json::object claim;
    claim["claimName"] = volume.first;
    volumes.push_back(json::object{{"name", "volume-" + std::to_string(number++)},
                                   {"persistentVolumeClaim", claim}});
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
  json::object result;
  result["metadata"] = json::object{{"labels", labels_of(job, name)}};
  result["spec"] = std::move(pod);
  return result;
}

// In this order; what none of them is for counts as a failure of its index.
json::object failure_policy() {
  json::object disrupted;
  disrupted["action"] = "Ignore";
  disrupted["onPodConditions"] =
      json::array{json::object{{"type", "DisruptionTarget"}, {"status", "True"}}};
  json::object others;
  others["action"] = "FailJob";
  others["onExitCodes"] = json::object{{"containerName", kContainer},
                                       {"operator", "NotIn"},
                                       {"values", json::array{kRetryableCode}}};
  return {{"rules", json::array{disrupted, others}}};
}

json::object job_spec(const JobFile& job, const std::string& name, bool is_in_set) {
  const int num_pods = nodes_wanted(job).most;
  json::object spec;
  spec["completionMode"] = "Indexed";
  spec["completions"] = num_pods;
  spec["parallelism"] = num_pods;
  if (is_in_set) {
    spec["backoffLimit"] = 0;  // the set makes all pods anew
  } else {
    spec["backoffLimitPerIndex"] = job.restarts.requeues;
    spec["maxFailedIndexes"] = 0;
    spec["ttlSecondsAfterFinished"] = job.kubernetes.keep_finished.count();
    if (!job.kubernetes.queue.empty()) spec["suspend"] = true;
  }
  if (job.limits.time) spec["activeDeadlineSeconds"] = job.limits.time->count();
  spec["podFailurePolicy"] = failure_policy();
  if (job.spares > 0 || job.min_nodes < job.max_nodes) {
    // Pods that never found a place don't keep the job.
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
  json::object spec;
  spec["clusterIP"] = "None";
  spec["publishNotReadyAddresses"] = true;
  spec["selector"] = json::object{{kInstanceLabel, name}};
  spec["ports"] =
      json::array{json::object{{"name", "rendezvous"}, {"port", kDefaultRendezvousPort}}};
  return {{"apiVersion", "v1"},
          {"kind", "Service"},
          {"metadata", metadata_of(job, name)},
          {"spec", spec}};
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
  json::object replicated;
  replicated["name"] = "nodes";
  replicated["replicas"] = 1;
  replicated["template"] = {{"metadata", json::object{{"labels", labels_of(job, name)}}},
                            {"spec", job_spec(job, name, true)}};
  json::object rule;
  rule["name"] = "notWorthRetrying";
  rule["action"] = "FailJobSet";
  rule["onJobFailureReasons"] = json::array{"PodFailurePolicy", "DeadlineExceeded"};
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

}  // namespace ddprun::submit
