// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/ddprun_command.h"

#include <optional>
#include <utility>

namespace ddprun::submit {
namespace {

class Words {
 public:
  explicit Words(std::string program) : words_{std::move(program)} {}

  void add(const std::string& flag, const std::string& value) {
    if (!value.empty()) words_.push_back("--" + flag + "=" + value);
  }
  void add(const std::string& flag, const std::optional<int>& value) {
    if (value) add(flag, std::to_string(*value));
  }
  void add(const std::vector<std::string>& words) {
    words_.insert(words_.end(), words.begin(), words.end());
  }
  std::vector<std::string> take() { return std::move(words_); }

 private:
  std::vector<std::string> words_;
};

void add_limits(const JobFile& job, Words& words) {
  words.add("worker-memory", job.limits.memory);
  words.add("worker-pids", job.limits.pids);
  words.add("worker-cpuset", job.limits.cpuset);
  words.add("worker-io", job.limits.io);
}

}  // namespace

std::string nodes_text(const JobFile& job) {
  if (job.max_nodes == 0) return {};
  const std::string least = std::to_string(job.min_nodes);
  return job.min_nodes == job.max_nodes ? least : least + ":" + std::to_string(job.max_nodes);
}

std::vector<std::string> ddprun_command(const JobFile& job, const CommandTraits& traits) {
  Words words(job.ddprun.empty() ? traits.ddprun : job.ddprun);
  words.add(traits.flags);
  if (traits.says_nodes) {
    words.add("nnodes", job.max_nodes == 0 ? traits.default_nodes : nodes_text(job));
  }
  if (job.spares > 0) words.add("spares", job.spares);
  words.add("nproc-per-node", job.workers_per_node);
  add_limits(job, words);
  for (const auto& [flag, number] : job.restarts.flags) words.add(flag, number);
  words.add("preflight-doctor", job.preflight.doctor);
  words.add("preflight", job.preflight.command);
  if (job.preflight.timeout) {
    words.add("preflight-timeout", std::to_string(job.preflight.timeout->count()));
  }
  if (!job.log_dir.empty()) {
    words.add("log-dir", job.log_dir);
    words.add("tee", "3");
  }
  words.add(job.flags);
  if (job.command.front().starts_with('-')) words.add({"--"});
  words.add(job.command);
  return words.take();
}

}  // namespace ddprun::submit
