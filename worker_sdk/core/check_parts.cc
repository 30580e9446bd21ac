// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/check_parts.h"

#include <cstddef>

#include "common/log.h"

namespace ddprun {

std::string parts_problem(const TensorView& part, const TensorView& whole, int rank, int size) {
  const auto num_parts = static_cast<std::size_t>(size);
  if (part.dtype != whole.dtype) {
    return concat("the buffers differ in type: ", to_string(part.dtype), " and ",
                  to_string(whole.dtype));
  }
  if (whole.count % num_parts != 0 || whole.count / num_parts != part.count) {
    return concat(whole.count, " elements are not ", size, " times ", part.count);
  }
  const auto* part_begin = static_cast<const char*>(part.data);
  const auto* whole_begin = static_cast<const char*>(whole.data);
  const bool overlap =
      part_begin < whole_begin + whole.size_bytes() && whole_begin < part_begin + part.size_bytes();
  const std::size_t own_offset = static_cast<std::size_t>(rank) * part.size_bytes();
  if (overlap && part_begin != whole_begin + own_offset) {
    return "the buffers overlap, and not at this rank's own part";
  }
  return {};
}

}  // namespace ddprun
