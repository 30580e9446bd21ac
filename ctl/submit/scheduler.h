// SPDX-License-Identifier: Apache-2.0
// One interface to the places that jobs are submitted to (docs/submit.md): Slurm, Kubernetes, hosts
// over ssh, standing agents. Blocking; each call has a deadline of its own. One thread.
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
#include "rendezvous/pages/gang_client.h"

namespace ddprun::submit {

enum class Phase { kQueued, kRunning, kSucceeded, kFailed, kCancelled, kUnknown };

// "queued", "running", …
const char* to_string(Phase phase);
// Whether the job has ended for good.
constexpr bool is_over(Phase phase) {
  return phase == Phase::kSucceeded || phase == Phase::kFailed || phase == Phase::kCancelled;
}

struct JobState {
  std::string id;  // with the scheduler's name: "slurm:123"
  std::string name;
  Phase phase = Phase::kUnknown;
  std::optional<int> exit_code;    // of a job that is over, if known
  std::vector<std::string> nodes;  // the nodes that it has or had; empty: not known
  std::optional<WallTime> submitted, began, ended;
  std::string reason;  // why it waits, or why it ended so, one line; empty: no reason to tell
};

// The ranks of one node. Numbers that only the node knows are unset.
struct RankRow {
  std::string node;  // a host, or its place: "node 0 of the step"
  int node_rank = 0;
  std::optional<int> first_global_rank, num_workers;
};

struct Plan {
  std::string how;   // how it is submitted, one line: "sbatch --parsable, over standard input"
  std::string text;  // the exact text that is submitted
  std::vector<RankRow> ranks;
  std::vector<std::string> notes;  // what is assumed, and what has no effect there
};

// Shows a job's output.
struct LogView {
  // Shows a piece. False: no more is wanted.
  std::function<bool(std::string_view)> show;
  // Waits for at most this time. False: no more is wanted.
  std::function<bool(std::chrono::milliseconds)> pause;
  // Asks the scheduler a question, and repeats it while the scheduler is away. False: no more is
  // wanted. Throws what the question throws.
  std::function<bool(const std::function<void()>&)> ask = [](const std::function<void()>& once) {
    once();
    return true;
  };
};

// How long a scheduler that doesn't answer is asked again.
inline constexpr std::chrono::minutes kMostSilence{10};

// Whether the error may pass, so that a later call may succeed: the scheduler is away.
inline bool may_pass(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kConnectionLost ||
         error.code() == ErrorCode::kTimeout;
}

// Arguments have the scheduler's own ids, without "slurm:". All functions but plan() throw an error
// of one line, with the scheduler's words. It is one that may_pass() if the scheduler can't be
// reached, and Error(kUnsupported) if this machine lacks its program. Error(kInvalidArgument): the
// scheduler refuses, or has no such job. Error(kPeerLost): it has forgotten a job that this object
// has seen there.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // The scheduler's name in --to and in ids: "slurm".
  virtual const char* name() const = 0;

  // Plans submit(), without side effects. Throws Error(kInvalidArgument) with a line for each thing
  // that the job lacks for this scheduler.
  virtual Plan plan(const JobFile& job) = 0;

  // Submits the job. Returns its id, without "slurm:". Throws as plan(), too.
  virtual std::string submit(const JobFile& job) = 0;
  // Flags, besides the id, that commands about the submitted job need: "--context=a".
  virtual std::vector<std::string> flags() const { return {}; }

  // Returns this user's jobs of ddprun: live ones, then those that are over, as far as the
  // scheduler tells.
  virtual std::vector<JobState> list() = 0;
  virtual JobState status(const std::string& id) = 0;
  // Whether an error of status(), or of a question in logs(), may pass by the next call. Only for a
  // scheduler that has answered before.
  virtual bool may_be_over(const Error& error) const { return may_pass(error); }
  // Whether the process may end during status(), or a question in logs(): they start no program.
  virtual bool may_end_in_question() const { return false; }

  // Asks for the job's end, and doesn't wait for it. Does nothing if the job is over.
  virtual void cancel(const std::string& id) = 0;

  // Shows the job's output so far. With `follow` goes on until the job is over, or pause() returns
  // false.
  virtual void logs(const std::string& id, bool follow, const LogView& view) = 0;
};

// Uses Slurm's programs: sbatch, scontrol, sacct, scancel. `ddprun` is its path on the nodes,
// unless a job names another. docs/submit.md, "Slurm".
std::unique_ptr<Scheduler> slurm_scheduler(const Environment& environment, std::string ddprun);

// Uses hosts that ssh reaches. Each job is a detached `ddprun --hosts` on this machine, with a
// directory of its own (job_record.h). `ddprun` is the launcher on this machine. docs/submit.md,
// "ssh".
std::unique_ptr<Scheduler> ssh_scheduler(const Environment& environment, std::string ddprun);

// Uses the user's kubectl. `context` is kubectl's; empty: its current one. After submit() it is the
// job's own. docs/submit.md, "Kubernetes".
std::unique_ptr<Scheduler> kubernetes_scheduler(std::string context);

// The queue of standing agents to use, and ddprunctl's flags for it. The job file's values come
// first, then the flags'. Throws Error.
struct NodesQueue {
  pages::GangClientOptions client;
  std::vector<std::string> flags;
};
using FindQueue = std::function<NodesQueue(const ctl::ConfiguredEndpoint&)>;

// Uses nodes with standing agents: a job is a gang in the queue of their ddprund. `environment` is
// the jobs'; a part of it stays on this machine. `ddprun` is this machine's launcher, which is
// asked what flags mean. docs/submit.md, "nodes".
std::unique_ptr<Scheduler> nodes_scheduler(Environment environment, std::string ddprun,
                                           FindQueue find_queue);

}  // namespace ddprun::submit
