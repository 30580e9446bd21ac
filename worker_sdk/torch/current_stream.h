// SPDX-License-Identifier: Apache-2.0
// LibTorch's current CUDA stream, for communicators that run beside it.
#pragma once

namespace ddprun {

// LibTorch's current stream (a cudaStream_t) on a device, of the calling thread, as a
// c10::StreamGuard sets it. It is nullptr if this process' LibTorch has no CUDA (load_cuda()). That
// is the legacy default stream, which is LibTorch's default, too. Throws Error(kSystem) with
// LibTorch's words.
//
// For CommunicatorOptions::current_stream. DistributedDataParallel and Checkpoint tell it their
// communicator by themselves.
void* current_torch_stream(int device_index);

}  // namespace ddprun
