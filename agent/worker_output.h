// SPDX-License-Identifier: Apache-2.0
// One worker's output (docs/output.md). Makes what it writes to, reads the pipes among that, hands
// on what comes to console and files, keeps the last lines. io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/console.h"
#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "agent/output/output_options.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// The last lines that one worker wrote, stdout and stderr together: for the failure report, and for
// who looks at them on the status page. Pure.
class OutputTail {
 public:
  static constexpr std::size_t kNumLines = 64;          // kept
  static constexpr std::size_t kNumReportedLines = 20;  // of a failure report
  static constexpr std::size_t kMaxLineBytes = 1024;    // the rest of a longer line is cut off
  static constexpr std::size_t kNumStreams = 2;

  // `stream` is 0 or 1; each has its own unfinished line.
  void feed(std::size_t stream, std::string_view bytes);

  // Oldest first, at most `most` of kNumLines, an unfinished line included. Made fit for reports
  // and JSON: valid UTF-8, at most kMaxLineBytes and a mark. A line with carriage returns has its
  // last text. Control characters, characters that hide or turn text, escape sequences and bytes
  // that are no text are replaced. Frames of a stack that LibTorch prints are one line after the
  // first one, so that they don't push out what was wrong.
  std::vector<std::string> lines(std::size_t most = kNumReportedLines) const;

 private:
  void add_line(std::string_view first, std::string_view rest);
  static void append_bounded(std::string& to, std::string_view bytes);
  static bool is_stack_frame(std::string_view line);

  std::array<std::string, kNumLines> ring_;  // strings are reused: no allocation per line
  std::size_t num_added_ = 0;
  std::size_t num_frames_ = 0;  // of the stack that the last line is of
  std::array<std::string, kNumStreams> partial_;
};

// One line as OutputTail::lines() shows it.
std::string printable_line(std::string_view line);

// Descriptors to hand to the worker. One below 0 is to be replaced by the agent's own.
struct WorkerStreams {
  UniqueFd stdout_fd;
  UniqueFd stderr_fd;
};

// A worker's place, as its lines name it. Negative ranks: a spare's, not known yet.
struct WorkerPlace {
  int local_rank = 0;
  int global_rank = 0;
  int node_rank = 0;
};

// A worker's last output, for people who look at it.
struct LastOutput {
  std::vector<std::string> lines;  // oldest first, at most OutputTail::kNumLines
  std::string note;                // which of its output is not among them, and why; empty: all is
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  // `options` outlives this. `logs` is null where there are no files, or not yet.
  WorkerOutput(boost::asio::io_context& io, Console& console, const OutputOptions& options,
               bool several_workers, std::shared_ptr<RoundLogs> logs, WorkerPlace place);

  // Makes the pipes and starts to read them. Throws Error when descriptors run out.
  WorkerStreams open();

  // Applies to output from now on.
  void set_place(WorkerPlace place, std::shared_ptr<RoundLogs> logs);

  // The worker has ended: takes the bytes in the pipes now, and passes on its unfinished lines.
  // Later output of others that hold the pipes is still read.
  void worker_ended();
  // Everyone has gone: as above, then closes the pipes.
  void close();
  // Drops the rest.
  void abandon();

  std::vector<std::string> last_lines() const { return tail_.lines(); }
  // `done` is called once. That is at once, or, if the worker writes to a file itself, when that
  // has been read. It is never, if its file system doesn't answer.
  void look(const std::function<void(LastOutput)>& done) const;

 private:
  struct Pipe {
    OutputStream stream;
    StreamPlan plan;
    LineSource source;
    LinePrefix prefix;
    std::string plain_prefix;               // source.prefix without colours
    std::time_t prefix_time = 0;            // of a prefix with the time in it
    std::unique_ptr<LogWriter::File> file;  // of plan.file = kCopied; null: not known yet
    std::optional<LineFilter> filter;
    boost::asio::posix::stream_descriptor read_end;
    Pipe(boost::asio::io_context& io, OutputStream of, StreamPlan how)
        : stream(of), plan(std::move(how)), prefix(plan.prefix_template), read_end(io) {}
  };
  enum class ReadResult { kDrained, kMore, kEnded };
  // The place where the worker's output of a stream can be found.
  enum class Kept { kHere, kInFile, kByConsole, kNowhere };

  OutputScene scene() const;
  UniqueFd open_stream(OutputStream stream);
  UniqueFd open_pipe(OutputStream stream, const StreamPlan& plan);
  void open_files(Pipe& pipe);
  void set_prefix(Pipe& pipe, std::time_t now);
  bool console_must_wait(const Pipe& pipe) const;
  LogWriter::File* full_file(const Pipe& pipe) const;
  bool must_wait(const Pipe& pipe) const { return console_must_wait(pipe) || full_file(pipe); }
  void wait_readable(std::size_t index);
  void on_readable(std::size_t index);
  ReadResult read_once(std::size_t index);
  void hand_on(Pipe& pipe, std::string_view bytes);
  void drain(std::size_t index);
  void end_lines(Pipe& pipe);
  void end_pipe(std::size_t index);
  void read_direct_files();
  std::string unseen(OutputStream stream) const;

  boost::asio::io_context& io_;
  Console& console_;
  const OutputOptions& options_;
  const bool several_workers_;

  std::shared_ptr<RoundLogs> logs_;           // second owners: the round's other workers
  std::vector<std::unique_ptr<Pipe>> pipes_;  // at most two; null: ended
  std::array<Kept, OutputTail::kNumStreams> kept_{};
  OutputTail tail_;
  WorkerPlace place_;
};

}  // namespace ddprun::agent
