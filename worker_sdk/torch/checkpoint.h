// SPDX-License-Identifier: Apache-2.0
// Saves and loads a training, so that all ranks go on from the same step (docs/checkpoint.md). Rank
// 0 alone reads from the directory; the others get from it what it has read.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker_sdk/core/checkpoint/safetensors.h"
#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun {

struct CheckpointOptions {
  std::string directory;     // made where it is missing
  std::size_t num_kept = 2;  // the newest so many; ≥ 1
  // True: save() returns when the tensors are copied, and a thread writes the copies.
  bool async = true;
  // False: rank 0 writes. True: every rank writes a part, to a directory that all hosts see.
  bool sharded = false;
};

// A loaded checkpoint's content beside its tensors.
struct SavedState {
  std::uint64_t step = 0;
  Metadata metadata;
  bool has_own = false;  // the tensors of each rank alone were loaded, too
};

// In all calls `tensors` are replicated: the same names, shapes and values on all ranks. `own` are
// of this rank alone, with names and shapes as it likes, and need CheckpointOptions::sharded. Each
// tensor is dense, on any device, of float64, float32, float16, bfloat16, int64, int32, int16,
// int8, uint8 or bool (else Error(kUnsupported)). Its name is not empty, no other's, and doesn't
// begin with "own:" (else Error(kInvalidArgument)).
//
// All calls are collective and from one thread. Beside the communicator's own errors, all throw on
// every rank the same Error, the first rank's that has one. Error(kInvalidArgument): the user
// decides (a directory that can't be written to, a checkpoint of another training). Error(kSystem):
// the disk is full or broken. Error(kResourceExhausted): memory is short. Destruction waits for a
// write under way, and loses its error: finish() first.
class Checkpoint {
 public:
  // Why a training can't go on from what was found; empty: it can. Called on rank 0 alone; may
  // throw Error(kProtocol), whose words are then the reason.
  using Accept = std::function<std::string(std::uint64_t step, const Metadata& metadata)>;

  // `communicator` outlives this object and moves buffers on `device`. Error(kInvalidArgument): the
  // directory can't be made or written to, or another process of this machine has it.
  Checkpoint(const CheckpointOptions& options, Communicator& communicator, c10::Device device);
  ~Checkpoint();

  // The newest checkpoint that is whole: `tensors` hold on every rank what it had, and the rest is
  // returned. nullopt: there is none yet, nothing was changed. `own` are loaded if as many ranks
  // saved and each saved ones of the same names, dtypes and shapes. Else they stay as they are, on
  // every rank.
  //
  // Error(kInvalidArgument): nothing was changed. Its tensors have other names, dtypes or shapes;
  // the message names the first one and both sides. Or `accept` refuses it (with its reason). Or
  // there are several and none is whole. Error(kSystem): one can't be read; where that is a shard
  // with `own`, `tensors` are loaded. Also the errors of the write before, as finish().
  std::optional<SavedState> load(const std::vector<NamedTensor>& tensors, const Accept& accept = {},
                                 const std::vector<NamedTensor>& own = {});

  // Saves the present `tensors` and `metadata`, unless the checkpoint saved or loaded last is of
  // the same step. They are on disk when it returns (async: when finish() or the next save() does).
  // `metadata` is rank 0's, without the keys "crc32", "shards", "save". Waits for the write before;
  // throws its error.
  void save(std::uint64_t step, const Metadata& metadata, const std::vector<NamedTensor>& tensors,
            const std::vector<NamedTensor>& own = {});

  // Returns when all that was saved is on disk; throws the error of the write under way.
  void finish();

  // The file that was loaded or saved last; empty: none, or not on rank 0.
  const std::string& path() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
