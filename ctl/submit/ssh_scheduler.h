// SPDX-License-Identifier: Apache-2.0
// Hosts that ssh reaches: each job is a `ddprun --hosts` on this machine, detached, with a
// directory of its own (job_record.h). docs/submit.md, "ssh".
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/environment.h"
#include "ctl/submit/job_record.h"
#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

class SshScheduler : public Scheduler {
 public:
  // `ddprun`: the launcher, on this machine.
  SshScheduler(const Environment& environment, std::string ddprun);

  const char* name() const override { return "ssh"; }
  Plan plan(const JobFile& job) override;
  std::string submit(const JobFile& job) override;
  std::vector<JobState> list() override;
  JobState status(const std::string& id) override;
  void cancel(const std::string& id) override;
  void logs(const std::string& id, bool follow, const LogView& view) override;

 private:
  JobRecord record_of(const std::string& id) const;
  void start(const JobFile& job, const JobRecord& record);
  void reap_launcher();

  const JobRecords records_;
  const std::string ddprun_;
  pid_t launcher_ = -1;  // that submit() started, our child until it ends; -1: none
};

}  // namespace ddprun::submit
