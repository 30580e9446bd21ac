// SPDX-License-Identifier: Apache-2.0
// One interface to what jobs are submitted to (docs/submit.md): Slurm, Kubernetes, a set of hosts
// over ssh, standing agents. Blocking, each call with a deadline of its own; one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "common/wall_time.h"
#include "ctl/submit/job_file.h"

namespace ddprun::submit {

enum class Phase { kQueued, kRunning, kSucceeded, kFailed, kCancelled, kUnknown };

// "queued", "running", …
const char* to_string(Phase phase);
// Nothing happens to the job any more.
constexpr bool is_over(Phase phase) {
  return phase == Phase::kSucceeded || phase == Phase::kFailed || phase == Phase::kCancelled;
}

struct JobState {
  std::string id;  // with the scheduler's name: "slurm:123"
  std::string name;
  Phase phase = Phase::kUnknown;
  std::optional<int> exit_code;    // of one that is over, as far as it is known
  std::vector<std::string> nodes;  // that it has, or had; empty: not known
  std::optional<WallTime> submitted, began, ended;
  std::string reason;  // why it waits, or ended so: one line; empty: nothing to tell
};

// Which ranks are where; numbers that only the nodes know are unset.
struct RankRow {
  std::string node;  // a host, or its place: "node 0 of the step"
  int node_rank = 0;
  std::optional<int> first_global_rank, num_workers;
};

struct Plan {
  std::string how;   // one line: what it is given to: "sbatch --parsable, over standard input"
  std::string text;  // exactly what is given to it
  std::vector<RankRow> ranks;
  std::vector<std::string> notes;  // of what is taken for granted, or means nothing there
};

// A viewer of a job's output.
struct LogView {
  // False: no more is wanted.
  std::function<bool(std::string_view)> show;
  // Waits for at most so long; false: likewise.
  std::function<bool(std::chrono::milliseconds)> pause;
  // Asks the place a question, again where it is away for a while; false: likewise. Throws as it.
  std::function<bool(const std::function<void()>&)> ask = [](const std::function<void()>& once) {
    once();
    return true;
  };
};

// How long those who wait ask a silent place again.
inline constexpr std::chrono::minutes kMostSilence{10};

// Whether the same call may succeed later: the place is away.
inline bool may_pass(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kConnectionLost ||
         error.code() == ErrorCode::kTimeout;
}

// Ids in arguments are the scheduler's own, without "slurm:". All but plan() throw an error of one
// line, with the scheduler's words. It is what may_pass() if the scheduler can't be reached,
// Error(kUnsupported) if this machine lacks its program. Error(kInvalidArgument): it refuses, or
// knows no such job. Error(kPeerLost): it has forgotten a job that this object was told of.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // "slurm": what --to and ids have.
  virtual const char* name() const = 0;

  // Plans submit(), without side effects. Throws Error(kInvalidArgument): a line for each thing
  // that this job lacks for this scheduler.
  virtual Plan plan(const JobFile& job) = 0;

  // Returns its id, without "slurm:". Throws as plan(), too.
  virtual std::string submit(const JobFile& job) = 0;
  // Flags that commands about the submitted job need besides its id: "--context=a".
  virtual std::vector<std::string> flags() const { return {}; }

  // This user's jobs of ddprun, live ones first, then those that are over, as far as it tells.
  virtual std::vector<JobState> list() = 0;
  virtual JobState status(const std::string& id) = 0;
  // Whether an error of status(), or of a question of logs(), may be over at the next call. For a
  // place that has answered before.
  virtual bool may_be_over(const Error& error) const { return may_pass(error); }
  // Whether status(), and what logs() asks, may be cut off by the end of the process: it starts no
  // program.
  virtual bool may_end_in_question() const { return false; }

  // Asks for its end; doesn't wait for it. Does nothing for a job that is over.
  virtual void cancel(const std::string& id) = 0;

  // Shows what there is of its output; with `follow` until it is over, or pause() says so.
  virtual void logs(const std::string& id, bool follow, const LogView& view) = 0;
};

// Slurm, by its own programs: sbatch, scontrol, sacct, scancel. `ddprun`: where it is on the nodes,
// unless a job says so. docs/submit.md, "Slurm".
std::unique_ptr<Scheduler> slurm_scheduler(const Environment& environment, std::string ddprun);

// Hosts that ssh reaches: each job is a `ddprun --hosts` on this machine, detached, with a
// directory of its own (job_record.h). `ddprun`: the launcher, on this machine. docs/submit.md,
// "ssh".
std::unique_ptr<Scheduler> ssh_scheduler(const Environment& environment, std::string ddprun);

// Kubernetes, by the user's kubectl. `context`: kubectl's; empty: its own. It is a job's own one,
// once that is submitted. docs/submit.md, "Kubernetes".
std::unique_ptr<Scheduler> kubernetes_scheduler(std::string context);

}  // namespace ddprun::submit
