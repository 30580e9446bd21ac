// SPDX-License-Identifier: Apache-2.0
// A log file that grows, shown as it does.
#pragma once

#include <functional>
#include <string>

#include "ctl/submit/scheduler.h"

namespace ddprun::submit {

// Shows what there is of the file `path`; with `follow` also what comes, until `is_over` says that
// no more will; not what comes after the view has ended. A file that isn't there yet is empty.
// Throws Error(kUnavailable) where it can't be read, and, without `follow`, where there is none.
void show_log(const std::string& path, bool follow, const LogView& view,
              const std::function<bool()>& is_over);

}  // namespace ddprun::submit
