// SPDX-License-Identifier: Apache-2.0
// Where workers leave the reason of their end, torchrun's way: TORCHELASTIC_ERROR_FILE, written by
// `torch.distributed.elastic.multiprocessing.errors.record`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::agent {

// The error's message out of the file's JSON; empty where it isn't that. Pure.
std::string parse_error_file(std::string_view json);

// A directory of this agent's own with a file name per round and worker.
class ErrorFiles {
 public:
  // Makes the directory in $TMPDIR (or /tmp). Where that fails there are no error files.
  explicit ErrorFiles(const std::string& temporary_directory);
  ~ErrorFiles();  // removes what is there
  ErrorFiles(const ErrorFiles&) = delete;
  ErrorFiles& operator=(const ErrorFiles&) = delete;

  // Empty: there is no directory.
  std::string path(std::uint64_t round, int local_rank) const;

  // What the worker left: "RuntimeError: …"; empty: nothing.
  std::string message(std::uint64_t round, int local_rank) const;

 private:
  std::string directory_;
};

}  // namespace ddprun::agent
