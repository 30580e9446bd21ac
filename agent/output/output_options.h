// SPDX-License-Identifier: Apache-2.0
// The user's options for workers' output, the plan for each stream that follows from them, and the
// filters of its lines. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::agent {

enum class OutputStream { kStdout, kStderr };

// A set of a worker's two streams.
struct StreamSet {
  bool out = false;
  bool err = false;

  bool has(OutputStream stream) const { return stream == OutputStream::kStdout ? out : err; }
  friend bool operator==(const StreamSet&, const StreamSet&) = default;
};

// The value of --redirects or --tee for each worker of this node.
struct StreamSpec {
  StreamSet all;  // of workers that by_local_rank doesn't name
  std::map<int, StreamSet> by_local_rank;

  friend bool operator==(const StreamSpec&, const StreamSpec&) = default;
  StreamSet of(int local_rank) const;
  bool empty() const;  // no stream of any worker
  int largest_rank() const { return by_local_rank.empty() ? -1 : by_local_rank.rbegin()->first; }
};

// Every parse function sets `to` and returns ""; else it returns the problem ("wants …").

// Parses "0" … "3" (none, stdout, stderr, both) for all workers, or "0:1,12:3" by local rank:
// workers that aren't named have none.
std::string parse_stream_spec(std::string_view text, StreamSpec& to);

// A set of ranks: several ranges from a first to a last rank.
class RankSet {
 public:
  bool empty() const { return ranges_.empty(); }
  bool has(int rank) const;
  int largest() const;  // −1: empty
  void add(int first, int last) { ranges_.emplace_back(first, last); }
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  std::vector<std::pair<int, int>> ranges_;
};

// Parses "0,3,8-15". An empty text is the empty set.
std::string parse_rank_set(std::string_view text, RankSet& to);

// Splits a text at its commas; two commas stand for one in a part. Empty parts, which would match
// every line, are left out.
std::vector<std::string> parse_line_filters(std::string_view text);

// Parses "1048576", "64K", "100M", "2G" (powers of 1024; "B" or "iB" may follow the letter). 0: no
// limit.
std::string parse_size(std::string_view text, std::uint64_t& to);

// The treatment of workers whose output nobody takes (--slow-reader).
enum class SlowReader {
  kBlock,  // they wait, and nothing is lost
  kDrop,   // they go on; whole lines are left out on the console, and counted
};

struct OutputOptions {
  // The directory of the log tree (agent/output/log_tree.h). Empty: there is none. "/dev/null": no
  // files, and `redirects` and `tee` mean nothing, as with torchrun.
  std::string log_dir;
  StreamSpec redirects;  // streams that go into files instead of to the console
  StreamSpec tee;        // streams that go into files and to the console
  RankSet local_ranks;   // workers shown on the console; empty: all
  RankSet ranks;         // the same, by global rank
  // Lines of tee'd streams that contain one of these texts also go to a file of their own.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  // The template of each line's prefix (LinePrefix). nullopt: the stream's own default.
  std::optional<std::string> prefix_template;
  std::string role_name = "default";
  SlowReader slow_reader = SlowReader::kBlock;
  std::uint64_t log_max_bytes = 0;  // of one log file, then it is rotated; 0: no limit
  int log_keep = 1;        // number of rotated files that stay: stdout.log.1 is the youngest
  bool is_watched = true;  // people who watch the job can see the last lines
  // The global rank that gets the agent's stdin; the others have /dev/null. nullopt: rank 0, and a
  // node's only worker.
  std::optional<int> stdin_rank;
  // As in torchrun: streams that are neither redirected nor tee'd are the console's own
  // descriptors, without a prefix. Every worker has the agent's stdin unless stdin_rank says
  // otherwise.
  bool inherit = false;

  friend bool operator==(const OutputOptions&, const OutputOptions&) = default;
  bool has_files() const { return !log_dir.empty() && log_dir != "/dev/null"; }
  const std::vector<std::string>& filters(OutputStream stream) const {
    return stream == OutputStream::kStdout ? stdout_filters : stderr_filters;
  }
};

// The way that each stream of a worker takes. Pure: docs/output.md has the table.

enum class ConsoleWay {
  kNone,     // not shown
  kTail,     // not shown, but read by the agent for the last lines of a failure report
  kInherit,  // the worker has the console's descriptor itself
  kRaw,      // read by the agent, shown unchanged as it comes
  kLines,    // read by the agent, shown in whole lines, each behind a prefix
};

enum class FileWay {
  kNone,
  kDirect,  // the worker writes to the file itself
  kCopied,  // the agent reads a pipe and writes the file
};

struct StreamPlan {
  ConsoleWay console = ConsoleWay::kNone;
  FileWay file = FileWay::kNone;
  std::string prefix_template;  // of kLines
  bool filtered = false;        // matching lines go to a file of their own

  friend bool operator==(const StreamPlan&, const StreamPlan&) = default;
  // Whether the worker writes to a pipe of the agent's.
  bool is_read() const;
};

struct WorkerPlan {
  StreamPlan out, err;
  bool one_pipe = false;  // both streams go the same way, and keep their order

  StreamPlan& of(OutputStream stream) { return stream == OutputStream::kStdout ? out : err; }
  const StreamPlan& of(OutputStream stream) const {
    return stream == OutputStream::kStdout ? out : err;
  }
};

// Facts about the console and the node.
struct OutputScene {
  bool several_workers = false;  // on this node
  bool has_files = false;        // there is a log tree: false if it couldn't be made
  bool stdout_is_terminal = false;
  bool stderr_is_terminal = false;
  bool same_file = false;  // stdout and stderr
};

// `global_rank` < 0: it is not known yet. Such a worker writes to no file itself.
WorkerPlan plan_output(const OutputOptions& options, const OutputScene& scene, int local_rank,
                       int global_rank);

// Chooses the lines of one stream that contain one of several texts. Pure.
class LineFilter {
 public:
  static constexpr std::size_t kMaxLineBytes = 64 * 1024;  // the rest of a longer line is left out

  explicit LineFilter(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Appends to `to` each line that matches, behind `prefix`.
  void feed(std::string_view bytes, std::string_view prefix, std::string& to);
  // Appends the last line, if it matches and had no newline.
  void end(std::string_view prefix, std::string& to);

 private:
  bool matches(std::string_view text) const;
  void hold(std::string_view bytes);

  const std::vector<std::string> texts_;
  std::string held_;  // of the unfinished line
};

}  // namespace ddprun::agent
