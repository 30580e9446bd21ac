// SPDX-License-Identifier: Apache-2.0
// Periodic averaging of a model (local SGD, docs/local-sgd.md): every rank steps alone, and from
// time to time all ranks take the mean of their tensors. Heavy: includes ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/torch/named_tensor.h"

namespace ddprun {

struct AveragerOptions {
  // Tensors are copied into one block and averaged in pieces of at least this many bytes. While one
  // piece is sent, the next one is copied.
  std::size_t bucket_bytes = std::size_t{4} << 20;
};

// Used by one thread. The tensors keep their memory: an average is copied into them.
class ModelAverager {
 public:
  // `tensors` are parameters, or an optimiser's running averages. They are dense, of float32,
  // float64, float16 or bfloat16, on the one device of `communicator`'s buffers. Names, sizes and
  // dtypes are the same on all ranks. Collective. Allocates as many bytes as they have.
  // `communicator` outlives this object. Throws Error(kUnsupported) naming a tensor of another
  // dtype; also the communicator's errors.
  ModelAverager(const std::vector<NamedTensor>& tensors, Communicator& communicator,
                const AveragerOptions& options = {});

  // Makes each tensor the mean over all ranks, bit-equal on all. Collective.
  void average();

  // The same in two parts, with training steps between them. At start() the mean differs from this
  // rank's tensors. finish() adds that difference to each tensor, so those steps are kept. Costs a
  // second copy. Afterwards the ranks are not equal, but nearer. Collective, in pairs; else
  // Error(kInvalidArgument).
  void start() { launch(true); }
  void finish();
  bool is_under_way() const { return is_under_way_; }

  // Returns the bytes that this rank gave to collectives so far.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // Tensors of one dtype that travel together.
  struct Piece {
    std::size_t first = 0, count = 0;  // index and number of its tensors
    DType dtype = DType::kFloat32;
    std::size_t offset_bytes = 0, size_bytes = 0;  // in the block
    WorkPtr work = nullptr;
  };

  void launch(bool keeps_own);
  void add_pieces(const std::vector<NamedTensor>& tensors, DType dtype, std::size_t bucket_bytes);
  void* address(std::size_t offset_bytes) const;

  Communicator& communicator_;
  at::Device device_ = at::kCPU;
  std::vector<at::Tensor> tensors_;  // by piece
  std::vector<Piece> pieces_;
  std::size_t size_bytes_ = 0;
  std::unique_ptr<CommBuffer> block_;
  std::vector<at::Tensor> places_;  // each tensor's place in the block
  std::vector<at::Tensor> own_;     // this rank's values at start(); empty: not kept
  bool is_under_way_ = false;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace ddprun
