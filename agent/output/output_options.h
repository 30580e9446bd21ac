// SPDX-License-Identifier: Apache-2.0
// What the user asked for about workers' output. Plain data, the same for all rounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/output/output_specs.h"

namespace ddprun::agent {

// What happens to workers whose output nobody takes (--slow-reader).
enum class SlowReader {
  kBlock,  // they wait, and nothing is lost
  kDrop,   // they go on; whole lines are left out on the console, and counted
};

struct OutputOptions {
  // Where the log tree goes (agent/output/log_tree.h). Empty: there is none. "/dev/null": no files,
  // and `redirects` and `tee` mean nothing, as with torchrun.
  std::string log_dir;
  StreamSpec redirects;  // into files instead of to the console
  StreamSpec tee;        // into files and to the console
  RankSet local_ranks;   // shown on the console; empty: all
  RankSet ranks;         // likewise, by global rank
  // Lines of tee'd streams that have one of these in them go to a file of their own, too.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  // Before each line (LinePrefix). nullopt: the stream's own default.
  std::optional<std::string> prefix_template;
  std::string role_name = "default";
  SlowReader slow_reader = SlowReader::kBlock;
  std::uint64_t log_max_bytes = 0;  // of one log file, then it is rotated; 0: no limit
  int log_keep = 1;                 // rotated files that stay: stdout.log.1 is the youngest
  bool is_watched = true;           // who watches the job is told the last lines
  // As torchrun: streams that are neither redirected nor tee'd are the console's own descriptors,
  // unprefixed, and every worker has the agent's stdin.
  bool inherit = false;

  friend bool operator==(const OutputOptions&, const OutputOptions&) = default;
  bool has_files() const { return !log_dir.empty() && log_dir != "/dev/null"; }
  const std::vector<std::string>& filters(OutputStream stream) const {
    return stream == OutputStream::kStdout ? stdout_filters : stderr_filters;
  }
};

}  // namespace ddprun::agent
