// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ddprun::agent {

extern const char kWarmHelperText[];  // warm_helper.py

}  // namespace ddprun::agent
