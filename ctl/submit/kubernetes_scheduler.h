// SPDX-License-Identifier: Apache-2.0
// Kubernetes, by the user's kubectl. docs/submit.md, "Kubernetes".
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ctl/submit/kubernetes_state.h"
#include "ctl/submit/run_program.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

class KubernetesScheduler : public Scheduler {
 public:
  // `context`: kubectl's; empty: its own. A job's own one, once it is submitted.
  explicit KubernetesScheduler(std::string context = {}) : context_(std::move(context)) {}

  const char* name() const override { return "kubernetes"; }
  Plan plan(const JobFile& job) override;
  std::string submit(const JobFile& job) override;
  std::vector<std::string> flags() const override;
  // In the context's own namespace.
  std::vector<JobState> list() override;
  JobState status(const std::string& id) override;
  // A Job that runs stays, and can be looked at; one that waits, and a JobSet, is deleted.
  void cancel(const std::string& id) override;
  void logs(const std::string& id, bool follow, const LogView& view) override;

 private:
  ProgramEnd call(const std::vector<std::string>& words, const std::string& input = {}) const;
  std::string run(const std::vector<std::string>& words) const;  // what it said; throws
  void take_back(const std::string& kube_namespace, const std::string& name) const;

  std::string context_;
  bool is_seen_at_its_end_ = true;     // such a job isn't removed at once then
  std::optional<JobState> last_seen_;  // of the job that was asked for last
};

}  // namespace ddprun::submit
