// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/nccl_buffer.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "worker_sdk/core/nccl/comm_setup.h"
#include "worker_sdk/core/nccl/errors.h"

namespace ddprun::nccl {
namespace {

constexpr std::chrono::milliseconds kRegisterTimeout{10'000};

}  // namespace

NcclBuffer::NcclBuffer(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl,
                       std::shared_ptr<CommGate> gate, std::shared_ptr<StreamDrain> drain,
                       int device, int rank, std::size_t size_bytes)
    : cuda_(std::move(cuda)),
      nccl_(std::move(nccl)),
      gate_(std::move(gate)),
      drain_(std::move(drain)),
      device_(device),
      rank_(rank),
      size_bytes_(size_bytes) {
  const std::size_t allocated_bytes = std::max<std::size_t>(size_bytes, 64);
  if (nccl_->has_mem_alloc()) {
    from_nccl_ = nccl_->mem_alloc(&data_, allocated_bytes) == Result::kSuccess;
  }
  if (!from_nccl_) {
    check_cuda(*cuda_, cuda_->memory_allocate(&data_, allocated_bytes), rank_,
               "allocating " + std::to_string(allocated_bytes) + " bytes on device " +
                   std::to_string(device_));
    return;
  }
  register_with_comm();
}

void NcclBuffer::register_with_comm() {
  CommGate::Pass pass(*gate_);
  if (pass.comm() == nullptr) return;
  void* handle = nullptr;
  Result result = nccl_->comm_register(pass.comm(), data_, size_bytes_, &handle);
  if (result == Result::kInProgress) {
    result = poll_until_settled(*nccl_, pass.comm(), Deadline::after(kRegisterTimeout));
  }
  if (result == Result::kSuccess) {
    registration_ = handle;
  } else {
    log_debug("rank ", rank_, ": NCCL did not register a buffer: ", nccl_->error_text(result));
  }
}

NcclBuffer::~NcclBuffer() {
  int before = device_;
  cuda_->get_device(&before);
  cuda_->set_device(device_);
  free_memory();
  cuda_->set_device(before);
}

void NcclBuffer::free_memory() {
  const StreamDrain::End end = drain_->wait();
  if (end != StreamDrain::End::kDrained) {
    log_warning("rank ", rank_, ": a buffer of ", size_bytes_, " bytes on device ", device_,
                end == StreamDrain::End::kStillBusy ? " is still used by operations that do not end"
                                                    : " may still be in use: CUDA does not say",
                "; it stays allocated until this process ends");
    return;
  }
  if (registration_ != nullptr) {
    CommGate::Pass pass(*gate_);
    if (pass.comm() != nullptr) nccl_->comm_deregister(pass.comm(), registration_);
  }
  if (from_nccl_) {
    nccl_->mem_free(data_);
  } else {
    cuda_->memory_free(data_);
  }
}

}  // namespace ddprun::nccl
