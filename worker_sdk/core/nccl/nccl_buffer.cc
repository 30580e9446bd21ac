// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/nccl/nccl_buffer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/bounded_call.h"
#include "common/log.h"
#include "worker_sdk/core/nccl/errors.h"

namespace ddprun::nccl {

NcclBuffer::NcclBuffer(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl,
                       std::shared_ptr<CommGate> gate, std::shared_ptr<StreamDrain> drain,
                       int device, int rank, std::size_t size_bytes)
    : memory_{std::move(cuda), std::move(nccl), std::move(gate), std::move(drain), device, rank,
              size_bytes} {
  const std::size_t allocated_bytes = std::max<std::size_t>(size_bytes, 64);
  if (memory_.nccl->has_mem_alloc()) {
    memory_.from_nccl = memory_.nccl->mem_alloc(&memory_.data, allocated_bytes) == Result::kSuccess;
  }
  if (!memory_.from_nccl) {
    check_cuda(*memory_.cuda, memory_.cuda->memory_allocate(&memory_.data, allocated_bytes), rank,
               "allocating " + std::to_string(allocated_bytes) + " bytes on device " +
                   std::to_string(device));
    return;
  }
  register_with_comm();
}

void NcclBuffer::register_with_comm() {
  NcclApi& nccl = *memory_.nccl;
  void* handle = nullptr;
  const CommGate::Pass pass(*memory_.gate);
  if (pass.comm() == nullptr) return;
  const Result result = nccl.comm_register(pass.comm(), memory_.data, memory_.size_bytes, &handle);
  if (result == Result::kSuccess) {
    memory_.registration = handle;
  } else {
    log_debug("rank ", memory_.rank, ": NCCL did not register a buffer: ", nccl.error_text(result));
  }
}

NcclBuffer::~NcclBuffer() {
  StreamDrain::End end = StreamDrain::End::kUnknown;
  try {
    const Stream callers = memory_.drain->callers_stream();
    const auto limit = memory_.drain->limit_of_freeing();
    end = limit ? free_within(*limit, callers) : free_here(callers);
  } catch (const std::exception&) {
    // The caller's stream can't be told.
  }
  const char* why = nullptr;
  switch (end) {
    case StreamDrain::End::kDrained:
      return;
    case StreamDrain::End::kStillBusy:
      why = " is still used by operations that do not end";
      break;
    case StreamDrain::End::kUnknown:
      why = " may still be in use: CUDA does not say";
      break;
    case StreamDrain::End::kHung:
      why = " is not taken back by the device, which hangs";
      break;
  }
  log_warning("rank ", memory_.rank, ": a buffer of ", memory_.size_bytes, " bytes on device ",
              memory_.device, why, "; it stays allocated until this process ends");
}

StreamDrain::End NcclBuffer::free_here(Stream callers) {
  int before = memory_.device;
  memory_.cuda->get_device(&before);
  memory_.cuda->set_device(memory_.device);
  StreamDrain::End end = memory_.drain->wait(callers);
  const auto failed_now = memory_.drain->limit_of_freeing();
  if (end == StreamDrain::End::kDrained) {
    if (failed_now) {
      end = free_within(*failed_now, callers);
    } else {
      give_back(memory_);
    }
  }
  memory_.cuda->set_device(before);
  return end;
}

StreamDrain::End NcclBuffer::free_within(Deadline deadline, Stream callers) {
  // Second owner: the call, which may be left behind.
  const auto end = std::make_shared<StreamDrain::End>(StreamDrain::End::kUnknown);
  const auto free = [memory = memory_, callers, end] {
    memory.cuda->set_device(memory.device);
    *end = memory.drain->wait(callers);
    if (*end == StreamDrain::End::kDrained) give_back(memory);
  };
  if (returns_before(deadline, free)) return *end;
  memory_.drain->left_behind();
  return StreamDrain::End::kHung;
}

void NcclBuffer::give_back(const Memory& memory) {
  if (memory.registration != nullptr) {
    const CommGate::Pass pass(*memory.gate);
    if (pass.comm() != nullptr) memory.nccl->comm_deregister(pass.comm(), memory.registration);
  }
  if (memory.from_nccl) {
    memory.nccl->mem_free(memory.data);
  } else {
    memory.cuda->memory_free(memory.data);
  }
}

}  // namespace ddprun::nccl
