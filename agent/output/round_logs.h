// SPDX-License-Identifier: Apache-2.0
// The log files of one round's workers on this node. io thread only.
#pragma once

#include <memory>
#include <string>

#include "agent/output/log_tree.h"
#include "agent/output/log_writer.h"
#include "agent/output/output_options.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class Console;

// As LogTree::begin_attempt(); throws Error(kSystem), too, where the file system doesn't answer.
std::string begin_attempt(LogWriter& writer, const std::shared_ptr<LogTree>& tree,
                          int restart_count, int num_workers);

class RoundLogs {
 public:
  // `attempt` is the round's directory (LogTree::begin_attempt). `console` and `options` outlive
  // this. Makes the files of filtered lines.
  RoundLogs(Console& console, const OutputOptions& options, std::string attempt);

  // A file that we write.
  std::unique_ptr<LogWriter::File> copied(int local_rank, OutputStream stream) const;
  // A file that the worker writes itself. Invalid: it can't be made, which was said, or its file
  // system doesn't answer.
  UniqueFd direct(int local_rank, OutputStream stream) const;
  std::string path(int local_rank, OutputStream stream) const;
  // Where lines that match the stream's filters go. Null: there are no filters.
  LogWriter::File* filtered(OutputStream stream) const;

 private:
  LogFileOptions file_options() const;

  Console& console_;
  const OutputOptions& options_;
  const std::string attempt_;
  std::unique_ptr<LogWriter::File> filtered_stdout_;
  std::unique_ptr<LogWriter::File> filtered_stderr_;
};

}  // namespace ddprun::agent
