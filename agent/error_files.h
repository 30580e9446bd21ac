// SPDX-License-Identifier: Apache-2.0
// Where workers leave the reason of their end, torchrun's way: TORCHELASTIC_ERROR_FILE, written by
// `torch.distributed.elastic.multiprocessing.errors.record`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

class LogWriter;

struct WorkerError {
  std::string message;                 // "RuntimeError: boom"; empty: nothing was left
  std::vector<std::string> traceback;  // its lines, the first and the last 23 at most
  // What an ErrorHandler of the program's own added: the file's object without the above, its time
  // and code, as text. Empty: nothing, or more than membership::kMaxErrorFieldsBytes.
  std::string fields;
};

// What the file's JSON says; nothing where it isn't @record's. Pure.
WorkerError parse_error_file(std::string_view json);

// A worker's error file: in the round's directory of the log tree, else in that of the workers'
// socket. An empty directory isn't there; neither: an empty name.
std::string worker_error_file(const std::string& log_directory, const std::string& socket_directory,
                              int local_rank);

// The file's, nothing where it can't be read.
WorkerError read_error_file(const std::string& path);

// The files of a round's workers, by local rank. None exists unless a worker made it. Whoever made
// the directory removes them: the log tree keeps them, the workers' socket's directory ends with
// the round, and so what is to be known of them is to be read when a worker's failure is heard of.
class ErrorFiles {
 public:
  // `writer` outlives this: reads, where a file system may hang. Null: nothing here does.
  explicit ErrorFiles(int num_workers, LogWriter* writer = nullptr)
      : num_workers_(num_workers), writer_(writer) {}

  // As worker_error_file() has them.
  void begin_round(std::uint64_t round, const std::string& log_directory,
                   const std::string& directory);

  // The workers go on in the next round, and their files stay what they are.
  void go_on(std::uint64_t round) { round_ = round; }

  // Empty: the worker has none.
  std::string path(std::uint64_t round, int local_rank) const;

  // What the worker left; nothing where the file system doesn't answer.
  WorkerError read(std::uint64_t round, int local_rank) const;

 private:
  // Constant after construction.
  const int num_workers_;
  LogWriter* const writer_;

  std::uint64_t round_ = 0;
  std::vector<std::string> paths_;
};

}  // namespace ddprun::agent
