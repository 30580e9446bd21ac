// SPDX-License-Identifier: Apache-2.0
// Hooks that send gradients in half precision on any device. The hooks of hooks/compression.h work
// in the memory of the CPU alone.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>

#include "worker_sdk/ddp/hooks/compression.h"

namespace ddprun {

// PyTorch's fp16_compress_hook and bf16_compress_hook, on the device of the gradients. A float32
// bucket is divided, rounded to `wire` (float16 or bfloat16), summed there, and widened again. With
// NCCL each sum of two ranks rounds once more. Buckets of other dtypes are averaged uncompressed.
// Throws Error(kInvalidArgument) for another `wire`.
std::shared_ptr<CommHook> make_cast_hook(c10::ScalarType wire);

// Returns the hook for gradients on `device`: on a GPU make_cast_hook() for fp16 and bf16. The
// others refuse a GPU when they are registered. Null for kNone.
std::shared_ptr<CommHook> make_comm_hook(const Compression& compression, c10::Device device);

}  // namespace ddprun
