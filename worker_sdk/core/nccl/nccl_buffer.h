// SPDX-License-Identifier: Apache-2.0
// Device memory that NCCL moves without a copy.
#pragma once

#include <memory>

#include "worker_sdk/core/communicator.h"
#include "worker_sdk/core/nccl/comm_gate.h"
#include "worker_sdk/core/nccl/cuda_api.h"

namespace ddprun::nccl {

class NcclBuffer : public CommBuffer {
 public:
  // The calling thread's device must be `device`. Registration that NCCL refuses only costs speed.
  // Throws Error(kResourceExhausted) when the device is full.
  NcclBuffer(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl,
             std::shared_ptr<CommGate> gate, int device, int rank, std::size_t size_bytes);
  ~NcclBuffer() override;
  NcclBuffer(const NcclBuffer&) = delete;
  NcclBuffer& operator=(const NcclBuffer&) = delete;

  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }
  bool from_nccl() const { return from_nccl_; }

 private:
  void register_with_comm();

  // Constant after construction. Second owner of all three: the communicator.
  const std::shared_ptr<CudaApi> cuda_;
  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<CommGate> gate_;
  const int device_;
  const int rank_;
  const std::size_t size_bytes_;
  void* data_ = nullptr;
  void* registration_ = nullptr;  // nullptr: not registered
  bool from_nccl_ = false;        // else from cudaMalloc
};

}  // namespace ddprun::nccl
