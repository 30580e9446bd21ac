// SPDX-License-Identifier: Apache-2.0
// A training's checkpoints on disk: step-000000000120.safetensors and the like. A file that has its
// name is whole, whatever happened to the machine meanwhile; the newest few are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker_sdk/core/checkpoint/safetensors.h"

namespace ddprun {

struct LoadedCheckpoint {
  std::string path;
  std::uint64_t step = 0;  // by its name
  std::string bytes;       // of the whole file
  Safetensors content;     // over `bytes`
};

// One process writes to a directory, one thread at a time: rank 0's. Files of other names are left
// alone.
class CheckpointDirectory {
 public:
  // Makes the directory where it is missing, and removes what a writer that was killed has left.
  // `num_kept` ≥ 1. Throws Error(kInvalidArgument) where it can't be made, or written to.
  explicit CheckpointDirectory(std::string path, std::size_t num_kept = 2);

  const std::string& path() const { return path_; }
  std::string path_of(std::uint64_t step) const;  // of the file that has it, or would

  // The newest file that is whole; null: the directory has none of any kind. Each newer one that
  // isn't gets a warning and the name NAME.damaged. Throws Error(kInvalidArgument) where none of
  // several is whole: to begin anew is the user's decision; Error(kSystem) where one can't be read.
  std::unique_ptr<LoadedCheckpoint> newest();

  // Its path. When it returns the file is on disk, and of those that are older the newest
  // `num_kept` − 1 are left. Throws Error(kSystem) (disk full, …); then the older ones are all
  // still there.
  std::string write(std::uint64_t step, const Metadata& metadata,
                    const std::vector<TensorBytes>& tensors);

 private:
  std::vector<std::uint64_t> steps() const;  // with a file, ascending
  void remove_older_than(std::uint64_t step);

  // Constant after construction.
  const std::string path_;
  const std::size_t num_kept_;
};

}  // namespace ddprun
