// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ddprun {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

}  // namespace ddprun
