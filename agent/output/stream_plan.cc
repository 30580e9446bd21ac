// SPDX-License-Identifier: Apache-2.0
#include "agent/output/stream_plan.h"

#include "agent/output/line_prefix.h"

namespace ddprun::agent {
namespace {

bool is_shown(const OutputOptions& options, int local_rank, int global_rank) {
  if (!options.local_ranks.empty() && !options.local_ranks.has(local_rank)) return false;
  return options.ranks.empty() || global_rank < 0 || options.ranks.has(global_rank);
}

// A stream that is neither redirected nor tee'd.
StreamPlan plan_plain(const OutputOptions& options, const OutputScene& scene, OutputStream stream) {
  StreamPlan plan;
  const bool is_err = stream == OutputStream::kStderr;
  const bool is_prefixed = scene.several_workers || !options.prefix_template.value_or("").empty();
  if (is_prefixed && !options.inherit) {
    plan.console = ConsoleWay::kLines;
    plan.prefix_template = options.prefix_template.value_or(LinePrefix::kRankTemplate);
  } else if (is_err ? scene.stderr_is_terminal : !scene.same_file || scene.stdout_is_terminal) {
    plan.console = ConsoleWay::kInherit;
  } else {
    // For the last lines in a failure report; stdout goes with it where it is the same file.
    plan.console = scene.several_workers ? ConsoleWay::kLines : ConsoleWay::kRaw;
  }
  return plan;
}

StreamPlan plan_stream(const OutputOptions& options, const OutputScene& scene, int local_rank,
                       int global_rank, OutputStream stream) {
  const bool means_files = options.log_dir != "/dev/null";
  const bool tee = means_files && options.tee.of(local_rank).has(stream);
  const bool to_file = scene.has_files && (tee || options.redirects.of(local_rank).has(stream));
  const bool shown = is_shown(options, local_rank, global_rank) && (tee || !to_file);
  StreamPlan plan;
  if (shown && tee) {
    plan.console = ConsoleWay::kLines;
    plan.prefix_template = options.prefix_template.value_or(LinePrefix::kTeeTemplate);
    plan.filtered = scene.has_files && !options.filters(stream).empty();
  } else if (shown) {
    plan = plan_plain(options, scene, stream);
  } else if (!to_file && stream == OutputStream::kStderr) {
    plan.console = ConsoleWay::kTail;
  }
  if (to_file) {
    const bool by_itself =
        plan.console == ConsoleWay::kNone && options.log_max_bytes == 0 && global_rank >= 0;
    plan.file = by_itself ? FileWay::kDirect : FileWay::kCopied;
  }
  return plan;
}

}  // namespace

bool StreamPlan::is_read() const {
  return file == FileWay::kCopied ||
         (console != ConsoleWay::kNone && console != ConsoleWay::kInherit);
}

WorkerPlan plan_output(const OutputOptions& options, const OutputScene& scene, int local_rank,
                       int global_rank) {
  WorkerPlan plan;
  plan.out = plan_stream(options, scene, local_rank, global_rank, OutputStream::kStdout);
  plan.err = plan_stream(options, scene, local_rank, global_rank, OutputStream::kStderr);
  plan.one_pipe = scene.same_file && plan.out == plan.err && plan.out.is_read() &&
                  plan.out.file == FileWay::kNone && !plan.out.filtered;
  return plan;
}

}  // namespace ddprun::agent
