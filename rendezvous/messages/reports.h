// SPDX-License-Identifier: Apache-2.0
// An agent's reports. On its node: CPU, memory, network, GPUs (docs/metrics.md). On each of its
// ranks, when one of the job has stopped making progress (docs/internals/hang-detection.md). On the
// time of their steps. Plain data, and its JSON; untrusted: the rendezvous shows it. Pure.
#pragma once

#include <boost/json/object.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/messages/json_fields.h"

namespace ddprun::membership {

inline constexpr std::size_t kMaxReportedInterfaces = 8;
inline constexpr std::size_t kMaxReportedGpus = 16;

struct InterfaceReport {
  std::string name;
  double received_rate = 0, sent_rate = 0;  // bytes per second

  friend bool operator==(const InterfaceReport&, const InterfaceReport&) = default;
};

// nullopt: it can't say.
struct GpuReport {
  int index = 0;              // NVML's
  std::optional<double> use;  // 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> watts, celsius;

  friend bool operator==(const GpuReport&, const GpuReport&) = default;
};

// nullopt: not known, as rates in a node's first report.
struct NodeReport {
  std::optional<int> num_cpus;
  std::optional<double> cpu;  // share of all CPUs' time, 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> retransmit_rate;    // TCP segments per second
  std::vector<InterfaceReport> interfaces;  // at most kMaxReportedInterfaces
  std::vector<GpuReport> gpus;              // at most kMaxReportedGpus

  friend bool operator==(const NodeReport&, const NodeReport&) = default;
};

// An unknown value is left out; one out of range becomes the limit.
void each_json(const NodeReport& report, JsonWriter& fields);
void each_json(NodeReport& report, JsonReader& fields);
// For programs: null for what is not known, and the sums over the interfaces.
boost::json::object shown_node_report(const NodeReport& report);

inline constexpr std::size_t kMaxReportedRanks = 64;  // of one node
inline constexpr std::size_t kMaxFrames = 16;
inline constexpr std::size_t kMaxFrameBytes = 120;
inline constexpr std::size_t kMaxOperationBytes = 256;
inline constexpr std::size_t kMaxCallBytes = 256;  // the system call and what it waits for

enum class RankActivity {
  kBlocked,  // no CPU or GPU time, no bytes worth mentioning since it went quiet
  kWorks,
  kStopped,  // by a signal or a debugger
};

struct RankReport {
  int global_rank = -1;
  int local_rank = -1;
  std::int64_t pid = 0;
  bool foreign = false;  // it writes no progress page: the next six mean nothing
  std::string phase;     // "start-up", "train", "checkpoint", "evaluate", "tear-down"
  std::uint64_t step = 0, steps_done = 0;
  std::uint64_t collectives_begun = 0, collectives_done = 0;
  std::string collective;  // the last one begun: "all_reduce"
  // The collectives that it has done of its first communicator, which all ranks share. Messages
  // are not counted here: ranks differ in them. nullopt: it doesn't record them.
  std::optional<std::uint64_t> shared_collectives_done;
  // The oldest operation that it is in, and for how long: "all_reduce #127 (25.0 MiB float32, sum)
  // of communicator 0". Empty: none, or it doesn't record them.
  std::string operation;
  std::chrono::milliseconds operation_time{0};
  std::chrono::milliseconds quiet{0};  // since its last progress
  std::chrono::milliseconds limit{0};  // of its phase; when it is reported
  // While it is blocked: when it may be acted upon; never before `limit`.
  std::chrono::milliseconds limit_if_blocked{0};
  // While it works: the same; nullopt: never.
  std::optional<std::chrono::milliseconds> limit_if_working;
  RankActivity activity = RankActivity::kBlocked;
  std::chrono::milliseconds unmoved{0};  // since it last read or wrote a byte
  int cpu_percent = 0;                   // of one core, since it went quiet
  std::string work;                 // likewise: "GPU 98 %, 3.1 MB/s over sockets"; may be empty
  std::string state;                // "S"
  std::string wchan;                // where in the kernel; may be empty
  std::string call;                 // "read() of /data/part-07"; empty: not known, or it runs
  std::vector<std::string> frames;  // innermost first, Python's before the native ones
  std::string note;                 // why frames are missing

  bool in_collective() const { return !foreign && collectives_begun > collectives_done; }
};

// Stacks may show that others of a job wait for a foreign rank. It is told of after so long, if its
// limit isn't less. That is longer than a usual checkpoint or first compilation.
inline constexpr std::chrono::milliseconds kWaitedForLimit{56'000};

// Times of one rank's steps: medians of the last ones, microseconds.
struct RankStepTime {
  int global_rank = -1;
  std::chrono::microseconds step{0};
  std::chrono::microseconds own{0};  // outside collectives
};

// ---- where the time of training steps goes, over ranks: its size doesn't grow with them ----

// One figure of several ranks.
struct RankSpread {
  double mean = 0;
  double worst = 0;     // the largest
  int worst_rank = -1;  // whose that is, global; −1: of nobody

  friend bool operator==(const RankSpread&, const RankSpread&) = default;
};

// Seconds per step, of each rank over its last steps; what each part is: docs/ddp.md.
struct StepSummary {
  int num_ranks = 0;  // that told them; 0: the rest means nothing
  RankSpread step, forward, backward, communication, exposed, loader;
  double bytes_per_step = 0;  // the mean
  double least_overlap = 0;   // of the ranks that communicated
  int least_overlap_rank = -1;

  // Hidden ÷ all communication, of all ranks together; 0 where there was none.
  double overlap() const;

  friend bool operator==(const StepSummary&, const StepSummary&) = default;
};

// One rank's steps. Values are finite and not below zero.
struct RankSteps {
  int global_rank = -1;
  double step = 0, forward = 0, backward = 0, communication = 0, exposed = 0, loader = 0;
  double bytes_per_step = 0;
};
StepSummary summary_of(const RankSteps& rank);

// `into` becomes that of both's ranks together. If both's worst are equal, the lower rank is named.
void add(StepSummary& into, const StepSummary& more);

// On the wire: {"ranks":2,"step":{"mean":0.04,"worst":0.05,"rank":1},…}.
void each_json(const StepSummary& summary, JsonWriter& fields);
void each_json(StepSummary& summary, JsonReader& fields);

// How far the ranks of one node are.
struct TrainingStatus {
  std::string phase;              // of the rank that is the least far
  std::uint64_t step = 0;         // that one's: the last one begun
  int num_ranks = 0;              // that said a loss which is a number; 0: the next one is none
  double loss = 0;                // the mean of theirs; finite
  double samples_per_second = 0;  // of all that said a loss, number or not
  StepSummary steps;              // since it was said last
  int num_nan = 0;                // ranks that said a loss which is no number (NaN, infinity)
  std::string framework = {};  // of their programs: "PyTorch 2.15.0, gloo, 2 ranks"; empty: untold
  std::uint64_t skipped_steps = 0;  // by the gradient scaler of the rank that skipped the most
  bool has_samples = true;          // false: samples_per_second is not known
};
inline constexpr std::size_t kMaxFrameworkBytes = 256;

// `all` gets what it lacks: "PyTorch 2.15.0, gloo, 2 ranks; PyTorch 2.14.0, gloo, 2 ranks". A text
// for which there is no room is left out.
void add_framework(std::string& all, const std::string& more);

}  // namespace ddprun::membership
