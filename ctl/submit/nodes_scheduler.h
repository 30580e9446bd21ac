// SPDX-License-Identifier: Apache-2.0
// Nodes with a standing agent: a job is a gang in the queue of their ddprund (docs/nodes.md).
// docs/submit.md, "nodes".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/environment.h"
#include "ctl/submit/scheduler.h"
#include "rendezvous/gangs/gang.h"
#include "rendezvous/pages/gang_client.h"

namespace ddprun::submit {

class NodesScheduler : public Scheduler {
 public:
  // Where the queue is: what the job file says of it, else the flags. Throws Error.
  using FindQueue = std::function<pages::GangClientOptions(const NodesKeys&)>;

  // `environment`: that of the jobs, of which a part stays here.
  NodesScheduler(Environment environment, FindQueue find_queue);

  const char* name() const override { return "nodes"; }
  Plan plan(const JobFile& job) override;
  std::string submit(const JobFile& job) override;
  std::vector<JobState> list() override;
  JobState status(const std::string& id) override;
  bool may_end_in_status() const override { return true; }
  void cancel(const std::string& id) override;
  void logs(const std::string& id, bool follow, const LogView& view) override;

 private:
  gangs::GangSpec spec_of(const JobFile& job) const;

  const Environment environment_;
  const FindQueue find_queue_;
  NodesKeys queue_;  // where a job was submitted: questions go there, too
};

}  // namespace ddprun::submit
