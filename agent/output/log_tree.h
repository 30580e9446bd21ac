// SPDX-License-Identifier: Apache-2.0
// The directories of --log-dir, as torchrun has them:
//
//   <log dir>/<run id>_<8 random characters>/attempt_<N>/<local
//   rank>/{stdout.log,stderr.log,error.json}
//                                            attempt_<N>/filtered_{stdout,stderr}.log
//
// Every name of the tree is made here.
#pragma once

#include <memory>
#include <string>

#include "agent/output/log_writer.h"
#include "agent/output/output_options.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class LogTree {
 public:
  // Says whether a tree can be made below `log_dir`, by making the directory and its parents, and a
  // small file for a moment. Returns the problem; empty: none.
  static std::string problem_with(const std::string& log_dir);

  // As problem_with(), but makes nothing. It says what the directory, or the nearest one above it,
  // shows.
  static std::string foreseen_problem_with(const std::string& log_dir);

  // Nothing is made yet. A relative `log_dir` is below the present working directory.
  LogTree(const std::string& log_dir, std::string run_id);

  // The run's own directory, made the first time, for this user only. It is kept open. If it is no
  // longer where it was made, another one is. Throws Error(kSystem).
  const LogFolder& begin_run();

  // The directory of attempt N, made with one below it for each worker; the first time also the
  // run's own. An attempt that was there is emptied. Throws Error(kSystem).
  LogFolder begin_attempt(int restart_count, int num_workers);

  const std::string& run_directory() const { return run_.path; }  // empty: not made yet

  // The name of a run's directory; `random` tells it from those of other runs of the same id.
  static std::string run_directory(const std::string& log_dir, const std::string& run_id,
                                   const std::string& random);
  static std::string attempt_directory(const std::string& run_directory, int restart_count);
  static std::string log_file(const std::string& attempt, int local_rank, OutputStream stream);
  static std::string error_file(const std::string& attempt, int local_rank);
  // The run's directory that a worker's log file lies in.
  static std::string run_directory_of(const std::string& log_file);
  // A pattern for one rank's file, which stands in the rank's directory, or has its number before
  // the name's end ("…/0/error.json" → "…/*/error.json", "/d/rank_0.json" → "/d/rank_*.json").
  static std::string of_all_ranks(const std::string& file);
  static std::string filtered_file(const std::string& attempt, OutputStream stream);

 private:
  const std::string log_dir_;
  const std::string run_id_;
  LogFolder run_;
};

class Console;

// As LogTree::begin_attempt(); throws Error(kSystem), too, where the file system doesn't answer.
LogFolder begin_attempt(LogWriter& writer, const std::shared_ptr<LogTree>& tree, int restart_count,
                        int num_workers);

// The log files of one round's workers on this node. io thread only.
class RoundLogs {
 public:
  // `attempt` is the round's directory (LogTree::begin_attempt). `console` and `options` outlive
  // this. Makes the files of filtered lines.
  RoundLogs(Console& console, const OutputOptions& options, LogFolder attempt);

  // A file that we write.
  std::unique_ptr<LogWriter::File> copied(int local_rank, OutputStream stream) const;
  // A file that the worker writes itself. Invalid: it can't be made, which was said, or its file
  // system doesn't answer.
  UniqueFd direct(int local_rank, OutputStream stream) const;
  std::string path(int local_rank, OutputStream stream) const;
  // The file for lines that match the stream's filters. Null: there are no filters.
  LogWriter::File* filtered(OutputStream stream) const;

 private:
  LogFileOptions file_options() const;

  Console& console_;
  const OutputOptions& options_;
  const LogFolder attempt_;
  std::unique_ptr<LogWriter::File> filtered_stdout_;
  std::unique_ptr<LogWriter::File> filtered_stderr_;
};

}  // namespace ddprun::agent
