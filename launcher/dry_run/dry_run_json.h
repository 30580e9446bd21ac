// SPDX-License-Identifier: Apache-2.0
// --dry-run --json: for scripts. docs/dry-run.md has the fields. Pure.
#pragma once

#include <string>

#include "launcher/dry_run/dry_run.h"

namespace ddprun::launcher {

// One line. Bytes that are no UTF-8 come out as U+FFFD.
std::string to_json(const DryRun& run);

}  // namespace ddprun::launcher
