// SPDX-License-Identifier: Apache-2.0
// Priorities of log lines in systemd's journal, as sd-daemon(3) has them: a line on stderr that
// begins with "<4>" is a warning.
#pragma once

#include <string_view>

#include "common/log.h"

namespace ddprun {

// Whether stderr is the stream of the journal that JOURNAL_STREAM names (device:inode). False: it
// was redirected since, or never was one. Found out at the first call.
bool stderr_is_journal();

// What a line of this level begins with: "<3>" to "<7>" where stderr is the journal's, else "".
std::string_view journal_prefix(LogLevel level);

}  // namespace ddprun
