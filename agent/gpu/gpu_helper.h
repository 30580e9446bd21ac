// SPDX-License-Identifier: Apache-2.0
// ddprun-gpus, asked: NVML may block for ever, so it is used in a process of its own. io thread
// only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/helper_child.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// What can be asked; ddprun-gpus' own words.
enum class GpuRequest : char {
  kProcesses = 'p',    // "DEVICE PID BYTES" lines: compute processes of all GPUs
  kUtilisation = 'u',  // "PID PERCENT" lines: shares of GPU time since it was last asked
  kReadings = 'r',     // "DEVICE KEY VALUE" lines (gpu_reading.h): the state of all GPUs
};
inline constexpr char kGpuAnswerEnd[] = ".\n";  // a line of its own

class GpuHelper : public std::enable_shared_from_this<GpuHelper> {
 public:
  // nullptr: this node has no NVIDIA driver, or the program can't be started (logged).
  static std::shared_ptr<GpuHelper> start(boost::asio::io_context& io, const std::string& program);
  // No call of `done` comes any more; the process is killed.
  ~GpuHelper();

  // `done` is called once, from the io context: with the answer's lines, or nullopt when there is
  // no NVML here or it broke, then for every later question, too. May never be called: the driver
  // hangs. One question at a time: false, and nothing happens, while one is open.
  using Done = std::function<void(const std::optional<std::string>& lines)>;
  bool ask(GpuRequest request, Done done);

 private:
  GpuHelper(boost::asio::io_context& io, std::shared_ptr<HelperChild> child, UniqueFd requests,
            int answer_fd);
  void read_answer();
  void lost();

  const std::shared_ptr<HelperChild> child_;  // second owner: its wait
  const UniqueFd requests_;
  boost::asio::posix::stream_descriptor answers_;  // closed: lost
  std::string text_;                               // of an answer that is under way
  Done done_;                                      // empty: nothing is asked
};

}  // namespace ddprun::agent
