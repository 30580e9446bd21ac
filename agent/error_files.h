// SPDX-License-Identifier: Apache-2.0
// Where workers leave the reason of their end, torchrun's way: TORCHELASTIC_ERROR_FILE, written by
// `torch.distributed.elastic.multiprocessing.errors.record`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::agent {

// The error's message out of the file's JSON; empty where it isn't that. Pure.
std::string parse_error_file(std::string_view json);

// The file name for each worker of a round. No file exists unless a worker made it.
class ErrorFiles {
 public:
  // Names begin with `prefix` ("/tmp/ddprun-<random>"), which nobody else uses. Empty: no files.
  explicit ErrorFiles(std::string prefix) : prefix_(std::move(prefix)) {}
  ~ErrorFiles();  // removes what workers left
  ErrorFiles(const ErrorFiles&) = delete;
  ErrorFiles& operator=(const ErrorFiles&) = delete;

  // Empty: no error files.
  std::string path(std::uint64_t round, int local_rank) const;

  // Says that workers of `round` get the names of local ranks below `num_workers`; removes what
  // those of the round before left.
  void begin_round(std::uint64_t round, int num_workers);

  // What the worker left: "RuntimeError: …"; empty: nothing.
  std::string message(std::uint64_t round, int local_rank) const;

 private:
  void remove_files() const;

  const std::string prefix_;
  std::uint64_t round_ = 0;
  int num_workers_ = 0;
};

}  // namespace ddprun::agent
