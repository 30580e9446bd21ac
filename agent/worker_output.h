// SPDX-License-Identifier: Apache-2.0
// One worker's output (docs/output.md). The class makes the pipes and files, reads the pipes,
// passes on the bytes to console and files, and keeps the last lines. io thread only.
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
#include "agent/output/line_prefix.h"
#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "agent/output/output_options.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

// The last lines that one worker wrote, stdout and stderr together. They are for the failure
// report, and for people who look at them on the status page. Pure.
class OutputTail {
 public:
  static constexpr std::size_t kNumLines = 64;          // kept
  static constexpr std::size_t kNumReportedLines = 20;  // in a failure report
  static constexpr std::size_t kMaxLineBytes = 1024;    // the rest of a longer line is cut off
  static constexpr std::size_t kNumStreams = 2;

  // `stream` is 0 or 1; each has its own unfinished line.
  void feed(std::size_t stream, std::string_view bytes);

  // Returns the lines, oldest first, at most `most` of kNumLines, including unfinished ones. They
  // are made fit for reports and JSON: valid UTF-8, at most kMaxLineBytes and a mark. A line with
  // carriage returns has its last text. Control characters, characters that hide or turn text,
  // escape sequences and bytes that are no text are replaced. Stack frames that LibTorch prints are
  // one line after the first one, so that they don't push out the error's text.
  std::vector<std::string> lines(std::size_t most = kNumReportedLines) const;

 private:
  void add_line(std::string_view first, std::string_view rest);
  static void append_bounded(std::string& to, std::string_view bytes);
  static bool is_stack_frame(std::string_view line);

  std::array<std::string, kNumLines> ring_;  // strings are reused: no allocation per line
  std::size_t num_added_ = 0;
  std::size_t num_frames_ = 0;  // in the stack that the last line belongs to
  std::array<std::string, kNumStreams> partial_;
};

// Returns one line as OutputTail::lines() shows it.
std::string printable_line(std::string_view line);

// Descriptors for the worker. One below 0 stands for the agent's own.
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

// A worker's last output for people.
struct LastOutput {
  std::vector<std::string> lines;  // oldest first, at most OutputTail::kNumLines
  std::string note;  // which of its output is missing above, and why; empty: nothing is
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  // `options` outlives this. `logs` is null where there are no files, or none yet.
  WorkerOutput(boost::asio::io_context& io, Console& console, const OutputOptions& options,
               bool several_workers, std::shared_ptr<RoundLogs> logs, WorkerPlace place);

  // Makes the pipes and starts to read them. Throws Error when descriptors run out.
  WorkerStreams open();

  // Sets the place for output from now on.
  void set_place(WorkerPlace place, std::shared_ptr<RoundLogs> logs);

  // Called when the worker has ended: reads the bytes in the pipes now, and passes on its
  // unfinished lines. Later output of other processes that hold the pipes is still read.
  void worker_ended();
  // Called when all these processes have ended: does the same, then closes the pipes.
  void close();
  // Drops all output that was not read yet.
  void abandon();

  std::vector<std::string> last_lines() const { return tail_.lines(); }
  // Returns the last traceback of Python, if so much was written after it that last_lines() lack
  // its exception. Empty: there is none.
  std::vector<std::string> hidden_traceback() const;
  // Calls `done` once: at once, or, if the worker writes to a file itself, when that has been read.
  // If that file's system doesn't answer, `done` is never called.
  void look(const std::function<void(LastOutput)>& done) const;

 private:
  struct Pipe {
    OutputStream stream;
    StreamPlan plan;
    LineSource source;
    LinePrefix prefix;
    std::string plain_prefix;     // source.prefix without colours
    std::time_t prefix_time = 0;  // for which time the prefix was made, if it has the time in it
    std::unique_ptr<LogWriter::File> file;  // for plan.file = kCopied; null: not known yet
    std::optional<LineFilter> filter;
    boost::asio::posix::stream_descriptor read_end;
    Pipe(boost::asio::io_context& io, OutputStream of, StreamPlan how)
        : stream(of), plan(std::move(how)), prefix(plan.prefix_template), read_end(io) {}
  };
  enum class ReadResult { kDrained, kMore, kEnded };
  // Says where the worker's output of a stream can be found.
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

  std::shared_ptr<RoundLogs> logs_;           // shared with the round's other workers
  std::vector<std::unique_ptr<Pipe>> pipes_;  // at most two; null: ended
  std::array<Kept, OutputTail::kNumStreams> kept_{};
  OutputTail tail_;
  WorkerPlace place_;
};

}  // namespace ddprun::agent
