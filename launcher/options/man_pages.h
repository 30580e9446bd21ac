// SPDX-License-Identifier: Apache-2.0
// ddprun.1 and ddprun.toml.5, made from the table of options. Pure.
#pragma once

#include "common/man_page.h"

namespace ddprun::launcher {

ManPage ddprun_man_page();
ManPage config_file_man_page();

}  // namespace ddprun::launcher
