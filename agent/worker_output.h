// SPDX-License-Identifier: Apache-2.0
// One worker's output: makes its pipes, reads them, hands lines to the console, keeps the last
// ones. io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <string>
#include <vector>

#include "agent/console.h"
#include "agent/output_tail.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// How a worker's streams go to the console. See WorkerGroupOptions::prefix_output.
enum class OutputMode { kPrefixed, kInherited };

// What to hand to the worker. A descriptor < 0 is to be replaced by the agent's own.
struct WorkerStreams {
  UniqueFd stdout_fd;
  UniqueFd stderr_fd;
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  // A negative global rank stands for a spare's worker: its lines begin with "[spare] ".
  WorkerOutput(boost::asio::io_context& io, Console& console, OutputMode mode, int global_rank);

  // Makes the pipes and starts to read them. Throws Error when descriptors run out.
  WorkerStreams open();

  // Of the lines that come from now on.
  void set_rank(int global_rank);

  // The worker has ended: takes what is in the pipes now, and passes on its unfinished lines. What
  // others that hold the pipes write afterwards is still read.
  void worker_ended();
  // Everyone has gone: as above, then closes the pipes.
  void close();
  // Drops the rest.
  void abandon();

  std::vector<std::string> last_lines() const { return tail_.lines(); }

 private:
  struct Pipe {
    OutputStream stream;
    LineSource source;
    boost::asio::posix::stream_descriptor read_end;
    explicit Pipe(boost::asio::io_context& io) : stream(OutputStream::kStdout), read_end(io) {}
  };
  enum class ReadResult { kDrained, kMore, kEnded };

  UniqueFd open_pipe(OutputStream stream);
  std::string prefix() const;
  void wait_readable(std::size_t index);
  void on_readable(std::size_t index);
  ReadResult read_once(std::size_t index);
  void drain(std::size_t index);
  void end_pipe(std::size_t index);

  // Constant after construction.
  boost::asio::io_context& io_;
  Console& console_;
  const OutputMode mode_;

  // io thread only.
  std::vector<std::unique_ptr<Pipe>> pipes_;  // at most two; null: ended
  OutputTail tail_;
  int global_rank_;
};

}  // namespace ddprun::agent
