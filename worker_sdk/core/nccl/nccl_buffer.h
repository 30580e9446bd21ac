// SPDX-License-Identifier: Apache-2.0
// Device memory that NCCL moves without a copy.
#pragma once

#include <memory>

#include "common/clock.h"
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
  // left allocated, with a warning. After the communicator failed: within
  // StreamDrain::limit_of_freeing, and the first buffer that the device doesn't take back in that
  // time leaves the others where they are. Before: cudaFree has no limit.
  ~NcclBuffer() override;
  NcclBuffer(const NcclBuffer&) = delete;
  NcclBuffer& operator=(const NcclBuffer&) = delete;

  void* data() override { return memory_.data; }
  std::size_t size_bytes() const override { return memory_.size_bytes; }
  bool from_nccl() const { return memory_.from_nccl; }

 private:
  // All that freeing needs: a thread that is left behind owns a copy.
  struct Memory {
    // Second owner of all four: the communicator.
    std::shared_ptr<CudaApi> cuda;
    std::shared_ptr<NcclApi> nccl;
    std::shared_ptr<CommGate> gate;
    std::shared_ptr<StreamDrain> drain;
    int device = 0;
    int rank = 0;
    std::size_t size_bytes = 0;
    void* data = nullptr;
    void* registration = nullptr;  // nullptr: not registered
    bool from_nccl = false;        // else from cudaMalloc
  };

  void register_with_comm();
  // The calling thread's device must be the memory's.
  static void give_back(const Memory& memory);
  StreamDrain::End free_here(Stream callers);
  StreamDrain::End free_within(Deadline deadline, Stream callers);

  Memory memory_;  // constant after construction
};

}  // namespace ddprun::nccl
