// SPDX-License-Identifier: Apache-2.0
// Asks ddprun-gpus: NVML may block for ever, so it is used in a process of its own. io thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/gpu/gpu_lines.h"
#include "agent/watched_child.h"
#include "common/clock.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// The questions, in the protocol of ddprun-gpus.
enum class GpuRequest : char {
  kProcesses = 'p',    // "DEVICE PID BYTES" lines: compute processes of all GPUs
  kUtilisation = 'u',  // "PID PERCENT" lines: shares of GPU time since it was last asked
  kReadings = 'r',     // "DEVICE KEY VALUE" lines (gpu_lines.h): the state of all GPUs
  kStatus = 's',       // the same form: how busy, full and hot they are
  kCount = 'n',        // one line: how many GPUs there are
};
inline constexpr char kGpuAnswerEnd[] = ".\n";  // a line of its own

// Whether NVML can be asked here: NVIDIA's driver is loaded, or DDPRUN_NVML_LIBRARY is set.
bool may_have_gpus();

class GpuHelper : public std::enable_shared_from_this<GpuHelper> {
 public:
  // Starts the helper. nullptr: this node has no NVIDIA driver, or the program can't be started
  // (logged).
  static std::shared_ptr<GpuHelper> start(boost::asio::io_context& io, const std::string& program);
  // No call of `done` comes any more; the process is killed.
  ~GpuHelper();

  // Asks the helper. `done` is called once, from the io context, with the answer's lines. nullopt:
  // there is no NVML here, or it broke; every later question gets nullopt, too. If the driver
  // hangs, `done` is never called. One question at a time: false, and nothing happens, while one is
  // open.
  using Done = std::function<void(const std::optional<std::string>& lines)>;
  bool ask(GpuRequest request, Done done);

 private:
  GpuHelper(boost::asio::io_context& io, std::shared_ptr<WatchedChild> child, UniqueFd requests,
            int answer_fd);
  void read_answer();
  void lost();

  const std::shared_ptr<WatchedChild> child_;  // shared with its wait
  const UniqueFd requests_;
  boost::asio::posix::stream_descriptor answers_;  // closed: the helper is lost
  std::string text_;                               // of an unfinished answer
  Done done_;                                      // empty: no question is open
};

// Returns how many GPUs NVML has, asking `program` (ddprun-gpus) just for this; nullopt: there is
// no NVML here. Blocks. Throws Error(kTimeout) if the driver has not answered at the deadline.
std::optional<int> count_gpus(const std::string& program, Deadline deadline);

// A helper that is started at its first question, for callers who want the latest answer, if there
// is one. If it has ended, for example because it was killed, a later question starts it again. io
// thread only.
class LazyGpuHelper {
 public:
  // The wait from the end of one process to the start of the next. It doubles each time, until one
  // process answers.
  struct Limits {
    std::chrono::milliseconds first_wait{1'000}, longest_wait{600'000};
  };

  // `program`: ddprun-gpus; empty: nothing is ever asked.
  LazyGpuHelper(boost::asio::io_context& io, std::string program);
  LazyGpuHelper(boost::asio::io_context& io, std::string program, const Limits& limits);
  ~LazyGpuHelper();
  LazyGpuHelper(const LazyGpuHelper&) = delete;
  LazyGpuHelper& operator=(const LazyGpuHelper&) = delete;

  // `answered` is called at most once, while this object lives. Does nothing while a question is
  // open, where there is no GPU, or while it waits to start another helper.
  void ask(GpuRequest request, std::function<void(const std::string& lines)> answered);

 private:
  void start();
  void lost();

  boost::asio::io_context& io_;
  const std::string program_;
  const Limits limits_;
  std::optional<Clock::time_point> start_at_;  // nullopt: never, since there is no GPU
  std::chrono::milliseconds wait_;             // from the end of the next process
  bool has_answered_ = false;                  // the last process has answered
  std::shared_ptr<GpuHelper> helper_;          // shared with its read, for a moment
  std::shared_ptr<bool> alive_;                // the helper's handler holds it weakly
};

// Waits until the driver has freed the GPU memory of a round's processes. Before that the next
// round's processes may find too little. NVML may hang without harm.
class GpuMemory : public std::enable_shared_from_this<GpuMemory> {
 public:
  // Starts `program` (ddprun-gpus). nullptr: this node has no NVIDIA driver, or the program can't
  // be started. Asks at once which processes hold memory before the first round.
  static std::shared_ptr<GpuMemory> open(boost::asio::io_context& io, const std::string& program);

  // Calls `done` once, from the io context: when nothing of the round holds memory, after `limit`,
  // or when NVML doesn't work. If NVML was silent for a whole wait, later waits end at once until
  // it answers again. Each of them starts a new ddprun-gpus for the next one. `note` tells the user
  // what is still held; empty: all is free. It names live processes of others, but the wait is not
  // for them.
  using Done = std::function<void(std::string note)>;
  void when_freed(std::chrono::milliseconds limit, Done done);

  // Ends a wait: `done` follows without a note.
  void give_up();

 private:
  GpuMemory(boost::asio::io_context& io, const std::string& program,
            std::shared_ptr<GpuHelper> helper);
  void ask();
  void answered(const std::string& lines);
  void limit_is_over();
  void start_again();
  void finish(std::string note);

  boost::asio::io_context& io_;
  const std::string program_;

  std::shared_ptr<GpuHelper> helper_;  // null: can't be started; shared with its read
  bool is_silent_ = false;             // no answer has come since a wait without any
  int num_waits_ = 0;
  bool is_heard_ = false;  // an answer has come in this wait
  boost::asio::steady_timer limit_;
  boost::asio::steady_timer next_;
  std::optional<std::vector<GpuProcess>> before_;  // the first answer
  GpuHolders last_;                                // of the latest answer
  std::chrono::milliseconds waited_{0};            // the limit of the wait under way
  Done done_;                                      // empty: nobody waits
};

}  // namespace ddprun::agent
