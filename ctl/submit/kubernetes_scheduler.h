// SPDX-License-Identifier: Apache-2.0
// Kubernetes, by the user's kubectl. docs/submit.md, "Kubernetes".
#pragma once

#include <string>
#include <vector>

#include "ctl/submit/kubernetes_state.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

class KubernetesScheduler : public Scheduler {
 public:
  const char* name() const override { return "kubernetes"; }
  Plan plan(const JobFile& job) override;
  std::string submit(const JobFile& job) override;
  // In kubectl's own context, in its namespace.
  std::vector<JobState> list() override;
  JobState status(const std::string& id) override;
  // A Job that runs stays, and can be looked at; one that waits, and a JobSet, is deleted.
  void cancel(const std::string& id) override;
  void logs(const std::string& id, bool follow, const LogView& view) override;
};

}  // namespace ddprun::submit
