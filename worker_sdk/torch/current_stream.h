// SPDX-License-Identifier: Apache-2.0
// LibTorch's current CUDA stream, for communicators that run beside it.
#pragma once

namespace ddprun {

// Returns LibTorch's current stream (a cudaStream_t) of the calling thread on a device, as a
// c10::StreamGuard sets it. Returns nullptr, the legacy default stream, if this process' LibTorch
// has no CUDA (load_cuda()). That is LibTorch's default, too. Throws Error(kSystem) with LibTorch's
// words.
//
// For CommunicatorOptions::current_stream. DistributedDataParallel and Checkpoint give it to their
// communicator by themselves.
void* current_torch_stream(int device_index);

}  // namespace ddprun
