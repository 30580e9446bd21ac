// SPDX-License-Identifier: Apache-2.0
// Nodes with a standing agent: a job is a gang in the queue of their ddprund (docs/nodes.md).
// docs/submit.md, "nodes".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/environment.h"
#include "ctl/submit/scheduler.h"
#include "rendezvous/gangs/gang.h"
#include "rendezvous/pages/gang_client.h"

namespace ddprun::submit {

class NodesScheduler : public Scheduler {
 public:
  // Where the queue is, and ddprunctl's flags that say so: what the job file says of it, else the
  // flags. Throws Error.
  struct Queue {
    pages::GangClientOptions client;
    std::vector<std::string> flags;
  };
  using FindQueue = std::function<Queue(const NodesKeys&)>;

  // `environment`: that of the jobs, of which a part stays here. `ddprun`: the launcher on this
  // machine, which knows what flags mean.
  NodesScheduler(Environment environment, std::string ddprun, FindQueue find_queue);

  const char* name() const override { return "nodes"; }
  Plan plan(const JobFile& job) override;
  std::string submit(const JobFile& job) override;
  std::vector<std::string> flags() const override { return flags_; }
  std::vector<JobState> list() override;
  JobState status(const std::string& id) override;
  bool may_end_in_question() const override { return true; }
  bool may_be_over(const Error& error) const override;
  void cancel(const std::string& id) override;
  void logs(const std::string& id, bool follow, const LogView& view) override;

 private:
  struct Submission {
    gangs::GangSpec spec;
    std::vector<std::string> notes;
  };
  Submission submission_of(const JobFile& job) const;
  static void post(const Queue& queue, const gangs::GangSpec& spec);
  gangs::GangNews known(const std::string& id, std::optional<gangs::GangNews> news);

  const Environment environment_;
  const std::string ddprun_;
  const FindQueue find_queue_;
  NodesKeys queue_;                 // where a job was submitted: questions go there, too
  std::vector<std::string> flags_;  // likewise
  std::string known_;               // the gang that the queue was seen to have; empty: none yet
};

}  // namespace ddprun::submit
