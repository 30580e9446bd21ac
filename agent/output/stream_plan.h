// SPDX-License-Identifier: Apache-2.0
// Which way each stream of a worker takes. Pure: docs/output.md has the table.
#pragma once

#include <string>

#include "agent/output/output_options.h"

namespace ddprun::agent {

enum class ConsoleWay {
  kNone,     // not shown
  kTail,     // not shown, but read by us for the last lines of a failure report
  kInherit,  // the worker has the console's descriptor itself
  kRaw,      // read by us, shown unchanged as it comes
  kLines,    // read by us, shown in whole lines, each behind a prefix
};

enum class FileWay {
  kNone,
  kDirect,  // the worker writes to the file itself
  kCopied,  // read by us, written by us
};

struct StreamPlan {
  ConsoleWay console = ConsoleWay::kNone;
  FileWay file = FileWay::kNone;
  std::string prefix_template;  // of kLines
  bool filtered = false;        // matching lines go to a file of their own

  friend bool operator==(const StreamPlan&, const StreamPlan&) = default;
  // The worker writes to a pipe of ours.
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

// What is known of the console and the node.
struct OutputScene {
  bool several_workers = false;  // on this node
  bool has_files = false;        // a log tree is there: not so if it couldn't be made
  bool stdout_is_terminal = false;
  bool stderr_is_terminal = false;
  bool same_file = false;  // stdout and stderr
};

// `global_rank` < 0: not known yet. Such a worker writes to no file itself.
WorkerPlan plan_output(const OutputOptions& options, const OutputScene& scene, int local_rank,
                       int global_rank);

}  // namespace ddprun::agent
