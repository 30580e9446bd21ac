// SPDX-License-Identifier: Apache-2.0
// NCCL's own all-reduce with nothing of ours around it: the peer of the benchmarks here.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "common/error.h"
#include "rendezvous/store/store.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/loader.h"
#include "worker_sdk/core/tensor_view.h"

namespace ddprun::bench {

class BareNccl {
 public:
  // All ranks at once; a second one in a process needs another store.
  BareNccl(nccl::CudaApi& cuda, nccl::NcclApi& library, store::Store& store, int rank, int size)
      : cuda_(cuda), library_(library) {
    constexpr char kKey[] = "bare_nccl/id";
    nccl::UniqueId id;
    if (rank == 0) {
      check(library_.get_unique_id(&id));
      store.set(kKey, std::string_view(id.bytes, sizeof id.bytes));
    } else {
      const std::string bytes = store.get(kKey);
      std::memcpy(id.bytes, bytes.data(), std::min(bytes.size(), sizeof id.bytes));
    }
    check(library_.comm_init_rank(&comm_, size, id, rank, {}));
    nccl::check_cuda(cuda_, cuda_.stream_create_high_priority(&stream_), rank, "cudaStreamCreate");
  }
  ~BareNccl() {
    library_.comm_abort(comm_);
    cuda_.stream_destroy(stream_);
  }
  BareNccl(const BareNccl&) = delete;
  BareNccl& operator=(const BareNccl&) = delete;

  // In place, on stream().
  void all_reduce(TensorView buffer, ReduceOp op) {
    check(library_.all_reduce(buffer.data, buffer.data, buffer.count, buffer.dtype, op, comm_,
                              stream_));
  }
  nccl::Stream stream() const { return stream_; }

 private:
  void check(nccl::Result result) {
    if (result == nccl::Result::kSuccess) return;
    throw Error(ErrorCode::kProtocol, "bare NCCL: " + library_.error_text(result));
  }

  nccl::CudaApi& cuda_;
  nccl::NcclApi& library_;
  nccl::Comm comm_ = nullptr;
  nccl::Stream stream_ = nullptr;
};

}  // namespace ddprun::bench
