// SPDX-License-Identifier: Apache-2.0
// Saves and loads a training, so that all ranks go on from the same step (docs/checkpoint.md). Only
// rank 0 reads from the directory, and sends the others what it has read.
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
  std::string directory;     // made if it is missing
  std::size_t num_kept = 2;  // how many of the newest are kept; ≥ 1
  // True: save() returns when the tensors are copied, and a thread writes the copies.
  bool async = true;
  // False: rank 0 writes. True: every rank writes a part, to a directory that all hosts see.
  bool sharded = false;
};

// A loaded checkpoint's content besides its tensors.
struct SavedState {
  std::uint64_t step = 0;
  Metadata metadata;
  bool has_own = false;  // each rank's own tensors were loaded, too
};

// In all calls `tensors` are replicated: the same names, shapes and values on all ranks. `own`
// belong to this rank alone; their names and shapes are free. They need CheckpointOptions::sharded.
// Each tensor is dense, on any device, of float64, float32, float16, bfloat16, int64, int32, int16,
// int8, uint8 or bool (else Error(kUnsupported)). Its name is not empty, not another tensor's, and
// doesn't begin with "own:" (else Error(kInvalidArgument)).
//
// All calls are collective and from one thread. They throw the communicator's errors. On any other
// error every rank throws the same Error, that of the first rank that has one.
// Error(kInvalidArgument): the user decides (a directory that can't be written to, a checkpoint of
// another training). Error(kSystem): the disk is full or broken. Error(kResourceExhausted): memory
// is short. The destructor waits for a write under way and loses its error: call finish() first.
class Checkpoint {
 public:
  // Returns why a training can't go on from the checkpoint found, or "" if it can. Called on rank 0
  // alone; may throw Error(kProtocol), whose words are then the reason.
  using Accept = std::function<std::string(std::uint64_t step, const Metadata& metadata)>;

  // `communicator` outlives this object and moves buffers on `device`. Error(kInvalidArgument): the
  // directory can't be made or written to, or another process of this machine uses it.
  Checkpoint(const CheckpointOptions& options, Communicator& communicator, c10::Device device);
  ~Checkpoint();

  // Loads the newest checkpoint that is whole into `tensors` on every rank, and returns the rest.
  // nullopt: there is none yet, nothing was changed. `own` are loaded if as many ranks saved, and
  // each rank's had the names, dtypes and shapes of now. Otherwise they stay as they are, on every
  // rank.
  //
  // Error(kInvalidArgument), without effect, in three cases. The checkpoint's tensors have other
  // names, dtypes or shapes; the message names the first one and both sides. Or `accept` refuses
  // it, with its reason. Or there are some and none is whole. Error(kSystem): one can't be read; if
  // that is a shard with `own`, `tensors` are loaded. The errors of the write before come, too, as
  // in finish().
  std::optional<SavedState> load(const std::vector<NamedTensor>& tensors, const Accept& accept = {},
                                 const std::vector<NamedTensor>& own = {});

  // Saves the present `tensors` and `metadata`, unless the checkpoint saved or loaded last is of
  // the same step. They are on disk when it returns (async: when finish() or the next save() does).
  // `metadata` is rank 0's, without the keys "crc32", "shards", "save". Waits for the write before,
  // and throws its error.
  void save(std::uint64_t step, const Metadata& metadata, const std::vector<NamedTensor>& tensors,
            const std::vector<NamedTensor>& own = {});

  // Returns when all that was saved is on disk; throws the error of the write under way.
  void finish();

  // Returns the file that was loaded or saved last; empty: none, or not on rank 0.
  const std::string& path() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
