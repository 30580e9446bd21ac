// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/autocast.h"

#include <ATen/autocast_mode.h>

#include "common/error.h"
#include "common/log.h"

namespace ddprun {

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      former_dtype_(at::autocast::get_autocast_dtype(device)) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("autocast to ", c10::toString(dtype), ": it is for float16 and bfloat16"));
  }
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, former_dtype_);
}

}  // namespace ddprun
