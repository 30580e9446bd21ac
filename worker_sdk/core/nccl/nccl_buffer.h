// SPDX-License-Identifier: Apache-2.0
// Device memory that NCCL moves without a copy.
#pragma once

#include <memory>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/cuda_api.h"
#include "worker_sdk/core/nccl/stream_drain.h"

namespace ddprun::nccl {

class NcclBuffer : public CommBuffer {
 public:
  // The calling thread's device must be `device`. Registration that NCCL refuses only costs speed.
  // Throws Error(kResourceExhausted) when the device is full.
  NcclBuffer(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl,
             std::shared_ptr<CommGate> gate, std::shared_ptr<StreamDrain> drain, int device,
             int rank, std::size_t size_bytes);
  // Frees it when nothing uses it any more: see StreamDrain::wait. Where that can't be had it is
  // left allocated, with a warning.
  ~NcclBuffer() override;
  NcclBuffer(const NcclBuffer&) = delete;
  NcclBuffer& operator=(const NcclBuffer&) = delete;

  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }
  bool from_nccl() const { return from_nccl_; }

 private:
  void register_with_comm();
  void free_memory();  // the calling thread's device is `device`

  // Constant after construction. Second owner of all four: the communicator.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<CommGate> gate_;
  const std::shared_ptr<StreamDrain> drain_;
  const int device_;
  const int rank_;
  const std::size_t size_bytes_;
  void* data_ = nullptr;
  void* registration_ = nullptr;  // nullptr: not registered
  bool from_nccl_ = false;        // else from cudaMalloc
};

}  // namespace ddprun::nccl
