// SPDX-License-Identifier: Apache-2.0
// Tensors on their way to a checkpoint's file and back.
#pragma once

#include <string>
#include <vector>

#include "worker_sdk/core/checkpoint/safetensors.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun::torch_adapter {

// Throws Error(kInvalidArgument) where a file of these could not be written, or not be read again.
void check_savable(const Metadata& metadata, const std::vector<NamedTensor>& tensors);

// Likewise, of what all ranks have alike: some keys and names are the checkpoint's own.
void check_replicated(const Metadata& metadata, const std::vector<NamedTensor>& tensors);

// Those that rank `rank` of `size` writes: all ranks write about as many bytes.
std::vector<NamedTensor> share_of(const std::vector<NamedTensor>& tensors, int rank, int size);

// The tensors of one rank alone have names of their own in its shard.
std::vector<NamedTensor> with_own_names(const std::vector<NamedTensor>& own);

// A file's tensors: all ranks'; and one rank's alone, by the names that they had before.
struct SavedTensors {
  std::vector<TensorBytes> replicated, own;
};
SavedTensors divide(const std::vector<TensorBytes>& tensors);

// Which tensor's name, dtype or shape isn't the same there as here, and how; empty: all are alike.
std::string first_difference(const std::vector<TensorBytes>& there,
                             const std::vector<NamedTensor>& here);

// Writes into `here`, on whatever device, what is there; there is no first_difference().
void copy_into(const std::vector<NamedTensor>& here, const std::vector<TensorBytes>& there);

// Memory of the host for copies of tensors, kept from one save to the next: fresh memory costs a
// page fault for each 4 KiB, more than the copy.
class HostCopies {
 public:
  // What `tensors` are now, contiguous; valid until the next take(). Throws Error(kUnsupported):
  // a dtype that safetensors hasn't; c10::Error: no memory.
  std::vector<TensorBytes> take(const std::vector<NamedTensor>& tensors);

 private:
  std::vector<at::Tensor> copies_;  // by place in the list
};

}  // namespace ddprun::torch_adapter
