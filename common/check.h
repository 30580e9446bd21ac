// SPDX-License-Identifier: Apache-2.0
// DDPRUN_CHECK checks a condition that only a bug can make false. It aborts with file, line and
// condition.
#pragma once

namespace ddprun::internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}

#define DDPRUN_CHECK(condition) \
  ((condition) ? void(0) : ::ddprun::internal::check_failed(__FILE__, __LINE__, #condition))
