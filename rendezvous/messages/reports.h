// SPDX-License-Identifier: Apache-2.0
// An agent's reports, as plain data and as JSON. One is about its node: CPU, memory, network, GPUs
// (docs/metrics.md). One is about its ranks, when a rank of the job has stopped making progress
// (docs/internals/hang-detection.md). Others are about the time of training steps. Their content is
// not trusted: the rendezvous only shows it. Pure.
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

// nullopt: the GPU doesn't tell.
struct GpuReport {
  int index = 0;              // NVML's number
  std::optional<double> use;  // 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> watts, celsius;

  friend bool operator==(const GpuReport&, const GpuReport&) = default;
};

// nullopt: not known. In a node's first report no rate is known.
struct NodeReport {
  std::optional<int> num_cpus;
  std::optional<double> cpu;  // share of all CPUs' time, 0 … 1
  std::optional<std::uint64_t> memory_bytes, memory_used_bytes;
  std::optional<double> retransmit_rate;    // TCP segments per second
  std::vector<InterfaceReport> interfaces;  // at most kMaxReportedInterfaces
  std::vector<GpuReport> gpus;              // at most kMaxReportedGpus

  friend bool operator==(const NodeReport&, const NodeReport&) = default;
};

// A value that isn't known is left out; one out of range becomes the nearest limit.
void each_json(const NodeReport& report, JsonWriter& fields);
void each_json(NodeReport& report, JsonReader& fields);
// Returns the report for programs: with null for each unknown value, and the sums over the
// interfaces.
boost::json::object shown_node_report(const NodeReport& report);

inline constexpr std::size_t kMaxReportedRanks = 64;  // per node
inline constexpr std::size_t kMaxFrames = 16;
inline constexpr std::size_t kMaxFrameBytes = 120;
inline constexpr std::size_t kMaxOperationBytes = 256;
inline constexpr std::size_t kMaxCallBytes = 256;  // the system call and what it waits for

enum class RankActivity {
  kBlocked,  // no CPU or GPU time and hardly a byte moved since its last progress
  kWorks,
  kStopped,  // by a signal, or by a debugger that traces it
};

struct RankReport {
  int global_rank = -1;
  int local_rank = -1;
  std::int64_t pid = 0;
  bool foreign = false;  // it writes no progress page: the next six fields have no meaning
  std::string phase;     // "start-up", "train", "checkpoint", "evaluate", "tear-down"
  std::uint64_t step = 0, steps_done = 0;
  std::uint64_t collectives_begun = 0, collectives_done = 0;
  std::string collective;  // of the last one begun: "all_reduce"
  // The number of collectives done on its first communicator, which all ranks share. Point-to-point
  // messages don't count: their number differs by rank. nullopt: the rank doesn't record them.
  std::optional<std::uint64_t> shared_collectives_done;
  // The oldest operation under way and its age so far, e.g. "all_reduce #127 (25.0 MiB float32,
  // sum) of communicator 0". Empty: none, or the rank doesn't record them.
  std::string operation;
  std::chrono::milliseconds operation_time{0};
  std::chrono::milliseconds quiet{0};  // since its last progress
  std::chrono::milliseconds limit{0};  // of its phase: reported after this
  // The job may react to a blocked rank after this time, at least `limit`.
  std::chrono::milliseconds limit_if_blocked{0};
  // The same for a rank that works; nullopt: never.
  std::optional<std::chrono::milliseconds> limit_if_working;
  RankActivity activity = RankActivity::kBlocked;
  std::chrono::milliseconds unmoved{0};  // since it last read or wrote a byte
  int cpu_percent = 0;                   // of one core, since its last progress
  std::string work;                 // since then: "GPU 98 %, 3.1 MB/s over sockets"; may be empty
  std::string state;                // the kernel's letter: "S"
  std::string wchan;                // the kernel function it waits in; may be empty
  std::string call;                 // "read() of /data/part-07"; empty: not known, or not in a call
  std::vector<std::string> frames;  // innermost first, Python's before the native ones
  std::string note;                 // why frames are missing
  bool has_debugger = false;        // Python's debugger debugpy was started in it

  bool in_collective() const { return !foreign && collectives_begun > collectives_done; }
};

// Stacks may show that other ranks of a job wait for a foreign rank (RankReport::foreign). Such a
// wait is reported after this time, unless the rank's limit is shorter. The time is longer than a
// usual checkpoint or first compilation.
inline constexpr std::chrono::milliseconds kWaitedForLimit{56'000};

// The times of one rank's steps: medians of its last steps.
struct RankStepTime {
  int global_rank = -1;
  std::chrono::microseconds step{0};
  std::chrono::microseconds own{0};  // outside collectives
};

// ---- the time of training steps over all ranks, in constant size ----

// One figure over several ranks.
struct RankSpread {
  double mean = 0;
  double worst = 0;     // the largest
  int worst_rank = -1;  // its global rank; −1: none

  friend bool operator==(const RankSpread&, const RankSpread&) = default;
};

// Seconds per step over each rank's last steps, for all ranks together. docs/ddp.md explains the
// parts.
struct StepSummary {
  int num_ranks = 0;  // that reported; 0: the other fields have no meaning
  RankSpread step, forward, backward, communication, exposed, loader;
  double bytes_per_step = 0;  // the mean
  double least_overlap = 0;   // the smallest of the ranks that communicated
  int least_overlap_rank = -1;

  // Returns hidden ÷ all communication of all ranks together; 0 if there was none.
  double overlap() const;

  friend bool operator==(const StepSummary&, const StepSummary&) = default;
};

// One rank's steps. The values are finite and not negative.
struct RankSteps {
  int global_rank = -1;
  double step = 0, forward = 0, backward = 0, communication = 0, exposed = 0, loader = 0;
  double bytes_per_step = 0;
};
StepSummary summary_of(const RankSteps& rank);

// Adds the ranks of `more` to `into`. If the worst values of both are equal, the lower rank is
// named.
void add(StepSummary& into, const StepSummary& more);

// On the wire: {"ranks":2,"step":{"mean":0.04,"worst":0.05,"rank":1},…}.
void each_json(const StepSummary& summary, JsonWriter& fields);
void each_json(StepSummary& summary, JsonReader& fields);

// The progress of one node's ranks.
struct TrainingStatus {
  std::string phase;                 // of the rank that is furthest behind
  std::uint64_t step = 0;            // the last that this rank began
  int num_ranks = 0;                 // whose loss is a number; 0: `loss` has no meaning
  double loss = 0;                   // the mean over those; finite
  double samples_per_second = 0;     // of all ranks
  StepSummary steps;                 // since the last report
  int num_nan = 0;                   // ranks whose loss is no number (NaN, infinity)
  std::string framework = {};        // e.g. "PyTorch 2.15.0, gloo, 2 ranks"; empty: not reported
  std::uint64_t skipped_steps = 0;   // by the gradient scaler of the rank that skipped the most
  std::uint64_t gpu_peak_bytes = 0;  // the most GPU memory that a rank's tensors had; 0: none
  int gpu_peak_rank = -1;            // that rank, global
  bool has_samples = true;           // false: samples_per_second is not known
};
inline constexpr std::size_t kMaxFrameworkBytes = 256;

// Adds the parts of `more` that `all` lacks: "PyTorch 2.15.0, gloo, 2 ranks; PyTorch 2.14.0, gloo,
// 2 ranks". A part for which there is no room is left out.
void add_framework(std::string& all, const std::string& more);
// Takes the rank's peak if it is the highest so far.
void add_gpu_peak(TrainingStatus& status, std::uint64_t peak_bytes, int global_rank);

}  // namespace ddprun::membership
