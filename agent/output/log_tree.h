// SPDX-License-Identifier: Apache-2.0
// The directories of --log-dir, as torchrun has them:
//
//   <log dir>/<run id>_<8 random characters>/attempt_<N>/<local
//   rank>/{stdout.log,stderr.log,error.json}
//                                            attempt_<N>/filtered_{stdout,stderr}.log
//
// Every name of the tree is made in this class.
#pragma once

#include <memory>
#include <string>

#include "agent/output/log_writer.h"
#include "agent/output/output_options.h"
#include "common/unique_fd.h"

namespace ddprun::agent {

class LogTree {
 public:
  // Tests whether a tree can be made below `log_dir`: makes the directory and its parents, and a
  // small file for a moment. Returns the problem; empty: none.
  static std::string problem_with(const std::string& log_dir);

  // Does the same, but makes nothing. It judges by the directory, or the nearest existing one above
  // it.
  static std::string foreseen_problem_with(const std::string& log_dir);

  // Makes nothing yet. A relative `log_dir` is below the present working directory.
  LogTree(const std::string& log_dir, std::string run_id);

  // Returns the run's own directory. The first call makes it, for this user only. It is kept open.
  // If it is no longer where it was made, another one is made. Throws Error(kSystem).
  const LogFolder& begin_run();

  // Makes the directory of attempt N, with one below it for each worker; the first time also the
  // run's own. An attempt that exists already is emptied. Throws Error(kSystem).
  LogFolder begin_attempt(int restart_count, int num_workers);

  const std::string& run_directory() const { return run_.path; }  // empty: not made yet

  // Returns the name of a run's directory. `random` differs for each run of the same id.
  static std::string run_directory(const std::string& log_dir, const std::string& run_id,
                                   const std::string& random);
  static std::string attempt_directory(const std::string& run_directory, int restart_count);
  static std::string log_file(const std::string& attempt, int local_rank, OutputStream stream);
  static std::string error_file(const std::string& attempt, int local_rank);
  // Returns the run's directory that contains a worker's log file.
  static std::string run_directory_of(const std::string& log_file);
  // Returns the pattern for all ranks from one rank's file. The file is in the rank's directory, or
  // has the rank's number before the name's end ("…/0/error.json" → "…/*/error.json",
  // "/d/rank_0.json" → "/d/rank_*.json").
  static std::string of_all_ranks(const std::string& file);
  static std::string filtered_file(const std::string& attempt, OutputStream stream);

 private:
  const std::string log_dir_;
  const std::string run_id_;
  LogFolder run_;
};

class Console;

// Does the same as LogTree::begin_attempt(). Also throws Error(kSystem) where the file system
// doesn't answer.
LogFolder begin_attempt(LogWriter& writer, const std::shared_ptr<LogTree>& tree, int restart_count,
                        int num_workers);

// The log files of one round's workers on this node. io thread only.
class RoundLogs {
 public:
  // `attempt` is the round's directory (LogTree::begin_attempt). `console` and `options` outlive
  // this. Makes the files of filtered lines.
  RoundLogs(Console& console, const OutputOptions& options, LogFolder attempt);

  // Opens a file that ddprun writes.
  std::unique_ptr<LogWriter::File> copied(int local_rank, OutputStream stream) const;
  // Opens a file that the worker writes itself. Invalid: it can't be made, which was said, or its
  // file system doesn't answer.
  UniqueFd direct(int local_rank, OutputStream stream) const;
  std::string path(int local_rank, OutputStream stream) const;
  // Returns the file for lines that match the stream's filters. Null: there are no filters.
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
