// SPDX-License-Identifier: Apache-2.0
// Slurm, by its own programs: sbatch, scontrol, sacct, scancel. docs/submit.md, "Slurm".
#pragma once

#include <string>

#include "common/environment.h"
#include "ctl/submit/job_record.h"
#include "ctl/submit/scheduler.h"
#include "ctl/submit/slurm_output.h"

namespace ddprun::submit {

class SlurmScheduler : public Scheduler {
 public:
  // `ddprun`: where it is on the nodes, unless a job says so.
  SlurmScheduler(const Environment& environment, std::string ddprun);

  const char* name() const override { return "slurm"; }
  Plan plan(const JobFile& job) override;
  std::string submit(const JobFile& job) override;
  std::vector<JobState> list() override;
  JobState status(const std::string& id) override;
  void cancel(const std::string& id) override;
  void logs(const std::string& id, bool follow, const LogView& view) override;

 private:
  JobState status_or_unknown(const JobRecord& record);
  // Of one that Slurm has forgotten: what sacct, then the job's own files say.
  JobState state_of_forgotten(const std::string& id) const;

  const JobRecords records_;
  const std::string ddprun_;
};

}  // namespace ddprun::submit
